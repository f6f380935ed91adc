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

from benchmarks import slices
from benchmarks.campaign_slices import SLICES
from benchmarks.report import publish
from fedjax_ht.runner.cli import fail, parse_flags

_SLICE = flags.DEFINE_integer("slice", None, "Which slice to run; without one --rehearse runs all.")
_LIST = flags.DEFINE_bool("list", False, "Print slices and items.")
_REHEARSE = flags.DEFINE_bool("rehearse", False, "A small form of every item, by the same code.")
_REPORT = flags.DEFINE_string(
    "report", None, "Folder whose results to make a page of, printed or written to --out."
)
_BUDGET = flags.DEFINE_float(
    "budget", 510.0, "Seconds after which a slice begins no further item.", lower_bound=0.0
)
_ONLY = flags.DEFINE_string("only", "", "Only the items whose names hold this.")
_RETRY = flags.DEFINE_bool("retry", False, "Also run items again that failed.")
_WORK = flags.DEFINE_float(
    "work", None, "Work off one process's items until this time; for the child."
)
flags.register_validator(
    "slice", lambda n: n is None or n in SLICES, f"the slices are {', '.join(map(str, SLICES))}"
)


def machine(precision: str) -> dict:
    """What results depend on besides the code."""
    smi = shutil.which("nvidia-smi")
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip() if smi else ""
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
    return [
        item
        for item in (SLICES[number].rehearsal if rehearse else SLICES[number].items)
        if _ONLY.value in item.name
    ]


def work(number: int, folder: Path, rehearse: bool, deadline: float) -> None:
    """The child's part."""
    precision = SLICES[number].precision
    jax.config.update("jax_default_matmul_precision", precision)
    if rehearse and jax.default_backend() == "cpu":  # most of it is compilation
        jax.config.update("jax_disable_most_optimizations", True)

    def tell(line):
        return print(f"  {line}", flush=True)

    path = slices.file_of(folder, number)
    slices.work(path, items_of(number, rehearse), machine(precision), deadline, tell)


def run_slice(number: int, folder: Path, rehearse: bool, budget: float, retry: bool) -> bool:
    """Whether all that ran is well."""
    path, part = slices.file_of(folder, number), SLICES[number]
    log = slices.read(path)
    if log.setdefault("rehearsal", rehearse) != rehearse:
        fail(ValueError(f"{path} is {'no ' * rehearse}rehearsal; choose another --out"))
    if retry:
        log["items"] = {
            name: log["items"][name] for name in log["items"].keys() - slices.failures(log).keys()
        }
    slices.write(path, log | {"slice": number, "title": part.title})
    command = [sys.executable, "-m", "benchmarks.campaign", f"--slice={number}", f"--out={folder}"]
    command += [f"--only={_ONLY.value}", *["--rehearse"] * rehearse]

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
    lines = []
    for number, part in SLICES.items():
        lines += [f"{number}. {part.title}", *(f"     {item.name}" for item in part.items)]
    return "\n".join(lines)


def main(_) -> None:
    if _LIST.value:
        print(listing())
        return
    if _REPORT.value:
        publish(slices.report(Path(_REPORT.value), SLICES, "Measured on a GPU"))
        return
    number, rehearse, out = _SLICE.value, _REHEARSE.value, flags.FLAGS.out
    if number is None and not rehearse:
        fail(ValueError("no --slice; --list names them"))
    if out is None:
        out = tempfile.mkdtemp(prefix="rehearsal-") if rehearse else "checkpoints/runs/campaign"
    if _WORK.value is not None:
        work(number, Path(out), rehearse, _WORK.value)
        return
    numbers = list(SLICES) if number is None else [number]
    done = {n: run_slice(n, Path(out), rehearse, _BUDGET.value, _RETRY.value) for n in numbers}
    print(
        json.dumps(
            {
                "out": str(out),
                "well": [n for n in done if done[n]],
                "not": [n for n in done if not done[n]],
            }
        )
    )
    sys.exit(0 if all(done.values()) else 1)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
