"""What every benchmark says of its machine, and where its text goes."""

import os
import platform
import time
from pathlib import Path

import jax
from absl import flags

from fedjax_ht.io.files import atomic_open

_OUT = flags.DEFINE_string("out", None, "Also write the report to this file.")


def machine() -> str:
    """One line: processor, cores, versions, date."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"jax on {jax.devices()[0].device_kind}; jax {jax.__version__}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}."
    )


def publish(text: str) -> None:
    """Prints a report, and writes it to --out."""
    print(text)
    if _OUT.value:
        with atomic_open(_OUT.value) as file:
            file.write(text + "\n")
