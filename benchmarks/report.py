"""What every benchmark shares: what it says of its machine, tables, where its text goes, processes
of their own."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

import jax
from absl import flags

from fedjax_ht.core.files import atomic_open
from fedjax_ht.report.machine import processor

_OUT = flags.DEFINE_string("out", None, "Also write the report to this file.", allow_override=True)


def machine() -> str:
    """One line: processor, cores, versions, date."""
    return (
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"jax on {jax.devices()[0].device_kind}; jax {jax.__version__}, Python "
        f"{platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; every row as long as the head."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float | None, digits: int = 2) -> str:
    """A cell: "-" for what was not measured, three significant digits or more."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def publish(text: str) -> None:
    """Prints a report, and writes it to --out."""
    print(text)
    if _OUT.value:
        with atomic_open(_OUT.value) as file:
            file.write(text + "\n")


def peak_memory() -> int:
    """Bytes: the most that jax's first device ever held where it tells, else the process."""
    held = jax.devices()[0].memory_stats() or {}
    return held.get("peak_bytes_in_use", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def in_a_process(module: str, arguments: Sequence[str], devices: int = 1) -> dict:
    """Runs `python -m module arguments`, with so many devices where jax runs on CPU; returns the
    JSON printed last.

    A process's peak memory never falls, and its number of CPU devices is fixed: each measurement
    has its own.
    """
    xla_flags = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    )
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"XLA_FLAGS": xla_flags},
    )
    return json.loads(done.stdout.splitlines()[-1])
