"""Measures CPU seconds of short runs in their own processes, and of a plain PyTorch script.

    python -m benchmarks.short_runs --torch=PYTHON [--repeats=3] [--out=benchmarks/results/NAME.md]

PYTHON is an interpreter with torch, numpy and matplotlib. The quickstart and the README's first
Python example run with an empty folder of compiled programs ("cold"), then again. The rows of one
repeat follow each other, so other load on the machine affects all of them.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags

import fedjax_ht as fl
from benchmarks.report import machine, number, publish, table
from fedjax_ht.lab.cli import parse_flags

_TORCH = flags.DEFINE_string("torch", None, "Python interpreter that has torch and matplotlib.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Repeats, of which medians are shown.")

ROOT = Path(__file__).parents[1]
COUNTED = """
import sys, jax
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: programs.append(event) if "backend_compile" in event else None
)
try:
    {code}
finally:
    print("programs", len(programs), file=sys.stderr)
"""
COMMAND = "from fedjax_ht.lab.command import main; main()"


def spent(command: list, folder: Path, programs: Path | None = None) -> dict:
    """Runs a process in a folder; returns its CPU seconds, wall seconds, and programs."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    if programs is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counted = re.findall(r"^programs (\d+)$", done.stderr, re.MULTILINE)
    return {
        "cpu": cpu,
        "clock": time.perf_counter() - start,
        "programs": int(counted[0]) if counted else None,
    }


def repeat(folder: Path) -> dict[str, dict]:
    """Measures every row once."""
    ten_lines = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (folder / "ten_lines.py").write_text(ten_lines)
    compare = [sys.executable, "-c", COUNTED.format(code=COMMAND), "compare", "--config=quickstart"]
    lines = [sys.executable, "-c", COUNTED.format(code="exec(open('ten_lines.py').read())")]
    rows = {}
    for when in ("cold", "again"):
        command = [*compare, f"--workdir={folder / when}"]
        rows[f"compare --config=quickstart, {when}"] = spent(command, folder, folder / "a")
        rows[f"the README's ten lines, {when}"] = spent(lines, folder, folder / "b")
    if _TORCH.value:
        dataset = fl.load_dataset("fashion_mnist_10k")
        np.savez(folder / "images.npz", images=dataset.inputs, labels=dataset.labels)
        script = [_TORCH.value, Path(__file__).with_name("short_runs_torch.py")]
        rows["the comparison in PyTorch"] = spent([*script, "images.npz", "torch"], folder)
    return rows


def main(_) -> None:
    measured = []
    for _ in range(_REPEATS.value):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(repeat(Path(folder)))
    rows = []
    for name, first in measured[0].items():
        cpu, clock = (median(m[name][key] for m in measured) for key in ("cpu", "clock"))
        beside = None
        if _TORCH.value:
            beside = median(
                m[name]["cpu"] / m["the comparison in PyTorch"]["cpu"] for m in measured
            )
        programs = "-" if first["programs"] is None else str(first["programs"])
        rows.append([name, number(cpu, 1), number(clock, 1), number(beside), programs])
    head = ("run", "CPU seconds", "seconds", "CPU / PyTorch", "programs")
    publish(f"{machine()} Medians of {_REPEATS.value}.\n\n{table(head, rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
