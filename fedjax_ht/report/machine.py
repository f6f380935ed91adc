"""What a measurement says of the machine it was made on."""

import platform
import re
from pathlib import Path


def processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    info = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if info.exists()
        else []
    )
    return names[0] if names else platform.machine()
