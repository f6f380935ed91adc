"""Measurements on a GPU that is at hand for minutes at a time, in slices of less than ten.

    python -m benchmarks.campaign --list
    python -m benchmarks.campaign --slice=2 --out=FOLDER          again: goes on where it stopped
    python -m benchmarks.campaign --rehearse                      everything in a small form, on CPU
    python -m benchmarks.campaign --report=FOLDER --out=benchmarks/results/gpu_campaign.md

Each slice writes FOLDER/slice_N.json, after every item. Exit code 1 says that an item failed, or a
check in one. To be run from the repository's root. Accuracies need Fashion-MNIST in `data/`,
pfl-research's CIFAR-10; PyTorch is measured where it is installed, HtFLlib where a checkout of it
lies in `HtFLlib/`, too. BUILD.md says which packages a campaign needs, and how they are carried to
a machine without a network.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
from absl import app, flags

from benchmarks.campaign import slices
from benchmarks.campaign.plan import SLICES
from benchmarks.report import publish
from fedjax_ht.lab.cli import fail, parse_flags

_SLICE = flags.DEFINE_integer("slice", None, "Which slice to run; without one --rehearse runs all.")
_LIST = flags.DEFINE_bool("list", False, "Print slices and items.")
_REHEARSE = flags.DEFINE_bool("rehearse", False, "A small form of every item, by the same code.")
_REPORT = flags.DEFINE_string(
    "report", None, "Folder whose results to make a page of, printed or written to --out."
)
_BUDGET = flags.DEFINE_float(
    "budget", 510.0, "Seconds after which a slice begins no further item.", lower_bound=0.0
)
_ONLY = flags.DEFINE_string("only", "", "Only the item of this name, or those whose names hold it.")
_RETRY = flags.DEFINE_bool("retry", False, "Also run items again that failed.")
_WORK = flags.DEFINE_float(
    "work", None, "Work off one process's items until this time; for the child."
)
flags.register_validator(
    "slice", lambda n: n is None or n in SLICES, f"the slices are {', '.join(map(str, SLICES))}"
)


def machine(precision: str) -> dict:
    """Returns the facts besides the code on which results depend."""
    driver = ""
    if smi := shutil.which("nvidia-smi"):
        query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return {
        "device": jax.devices()[0].device_kind,
        "driver": driver,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "Python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "XLA flags": os.environ.get("XLA_FLAGS", ""),
        "float32 products": precision,
        "date": time.strftime("%Y-%m-%d"),
    }


def items_of(number: int, rehearse: bool) -> list[slices.Item]:
    """Returns a slice's items, or their small form: the one that --only names, or those whose names
    hold it ("dfrd, lanes 4" is not "fedrolex+dfrd, lanes 4")."""
    items = SLICES[number].rehearsal if rehearse else SLICES[number].items
    named = [item for item in items if item.name == _ONLY.value]
    return named or [item for item in items if _ONLY.value in item.name]


def work(number: int, folder: Path, rehearse: bool, deadline: float) -> None:
    """Works off one process's items: the child's part."""
    precision = SLICES[number].precision
    jax.config.update("jax_default_matmul_precision", precision)
    if rehearse and jax.default_backend() == "cpu":  # most of it is compilation
        jax.config.update("jax_disable_most_optimizations", True)

    def print_line(line):
        print(f"  {line}", flush=True)

    path = slices.file_of(folder, number)
    slices.work(path, items_of(number, rehearse), machine(precision), deadline, print_line)


def run_slice(number: int, folder: Path, rehearse: bool, budget: float, retry: bool) -> bool:
    """Runs a slice's missing items, and returns whether all of them are well."""
    path, part = slices.file_of(folder, number), SLICES[number]
    log = slices.read(path)
    if log.setdefault("rehearsal", rehearse) != rehearse:
        kind = "no rehearsal" if rehearse else "rehearsal"
        fail(ValueError(f"{path} is {kind}; choose another --out"))
    if retry:
        for name in slices.failures(log):
            del log["items"][name]
    slices.write(path, log | {"slice": number, "title": part.title})
    command = [sys.executable, "-m", "benchmarks.campaign", f"--slice={number}", f"--out={folder}"]
    command.append(f"--only={_ONLY.value}")
    if rehearse:
        command.append("--rehearse")

    def start(deadline: float) -> int:
        return subprocess.run(
            [*command, f"--work={deadline}"], env=os.environ | part.environment
        ).returncode

    print(f"slice {number}: {part.title}", flush=True)
    began, items = time.time(), items_of(number, rehearse)
    broken = slices.supervise(path, items, start, budget)
    log = slices.read(path)
    print(slices.section(number, part, log), flush=True)
    left, wrong = slices.missing(log, items), slices.failures(log)
    took = f"{time.time() - began:.0f} s, {len(wrong)} failed, {len(left)} left"
    print(f"slice {number}: {took}. {broken or ''}", flush=True)
    return not wrong and not broken


def listing() -> str:
    """Returns the slices and their items, a line each."""
    lines = []
    for number, part in SLICES.items():
        lines.append(f"{number}. {part.title}")
        lines += [f"     {item.name}" for item in part.items]
    return "\n".join(lines)


def default_folder(rehearse: bool) -> str:
    """Returns where results go without --out."""
    return tempfile.mkdtemp(prefix="rehearsal-") if rehearse else "checkpoints/runs/campaign"


def main(_) -> None:
    if _LIST.value:
        print(listing())
        return
    if _REPORT.value:
        publish(slices.report(Path(_REPORT.value), SLICES, "Measured on a GPU"))
        return
    number, rehearse = _SLICE.value, _REHEARSE.value
    if number is None and not rehearse:
        fail(ValueError("no --slice; --list names them"))
    out = flags.FLAGS.out or default_folder(rehearse)
    if _WORK.value is not None:
        work(number, Path(out), rehearse, _WORK.value)
        return
    well, failed = [], []
    for n in SLICES if number is None else [number]:
        ok = run_slice(n, Path(out), rehearse, _BUDGET.value, _RETRY.value)
        (well if ok else failed).append(n)
    print(json.dumps({"out": str(out), "well": well, "not": failed}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
