"""The machine that a measurement was made on."""

import platform
import re
from pathlib import Path


def processor() -> str:
    """Returns the processor's name where the system tells it, else its kind."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if name:
            return name[1]
    return platform.machine()
