"""Functions that benchmarks share: the machine's description, tables, reports, child processes."""

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

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.runs.environment import processor

_OUT = flags.DEFINE_string("out", None, "Also write the report to this file.", allow_override=True)


def machine() -> str:
    """Returns one line: processor, cores, versions, date."""
    return (
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, jax on "
        f"{jax.devices()[0].device_kind}; jax {jax.__version__}, Python "
        f"{platform.python_version()}, {time.strftime('%Y-%m-%d')}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; every row is as long as the head."""
    return Table(head, list(rows)).markdown()


def number(value: float | None, digits: int = 2) -> str:
    """Formats a cell: "-" for None (not measured); no decimals from 100 on, else `digits`."""
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
    """Returns the most bytes ever held by jax's first device or, if unknown, by the process."""
    held = jax.devices()[0].memory_stats() or {}
    return held.get("peak_bytes_in_use", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def in_a_process(module: str, arguments: Sequence[str], devices: int = 1) -> dict:
    """Runs `python -m module arguments` and returns the JSON that it prints last.

    A process's peak memory never falls, and its number of CPU devices is fixed, so each measurement
    needs a process.

    Args:
      module, arguments: module and arguments of the command.
      devices: number of jax's devices on CPU.
    """
    xla_flags = os.environ.get("XLA_FLAGS", "")
    xla_flags += f" --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | {"XLA_FLAGS": xla_flags}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])
