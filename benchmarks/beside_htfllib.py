"""Compares a whole round with HtFLlib's, in processor seconds of one core.

    python -m benchmarks.beside_htfllib --htfllib=PATH [--python=PYTHON] [--methods=local,fedtgp]
        [--out=FILE]

Both have the same clients, samples, models and steps. PATH is a checkout of
github.com/TsingZ0/HtFLlib, whose code runs unchanged under PYTHON, which has torch, scikit-learn
and its other imports. The federation is quickstart_fedtgp's: 20 clients, CNN-1..5, some 375 of
Fashion-MNIST's images each. A round is training, upload, server and one evaluation of all clients.
Theirs reads and writes every model's file; ours writes its metrics and checkpoints. By default ours
also scores participants as their training left them, which HtFLlib does not. That is switched off
here (`evaluate.participants`), and would take as long as the evaluation.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from benchmarks import htfllib
from benchmarks.htfllib import PAIRS
from benchmarks.report import in_a_process, machine, number, publish, table
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.configs import quickstart_fedtgp
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import train_and_evaluate

WARM = 2  # uncounted rounds of ours: the first compiles


HEAD = (
    "method", "HtFLlib, before and after", "its evaluation", "ours", "our evaluation",
    "HtFLlib / ours",
    "best %, HtFLlib's and ours",
)  # fmt: skip
WIDTHS = (300, 200, 150, 100, 50)  # of the first hidden layer of CNN-1..5

_HTFLLIB = flags.DEFINE_string("htfllib", None, "A checkout of HtFLlib.")
_PYTHON = flags.DEFINE_string("python", sys.executable, "What HtFLlib runs under.")
_METHODS = flags.DEFINE_list("methods", list(PAIRS), "What to time.")
_ROUNDS = flags.DEFINE_integer("rounds", 8, "Rounds that are counted.")
_HERE = flags.DEFINE_bool(
    "here", False, "Time our rounds of the one method here and print JSON; for the child."
)
flags.register_validator("methods", set(PAIRS).issuperset, f"the methods are {', '.join(PAIRS)}")


def on_one_core() -> None:
    """Restricts this process, and those that it starts, to one core."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


def configured(name: str) -> Config:
    """Returns the config quickstart_fedtgp with a method, samples in stored order as in HtFLlib."""
    config = quickstart_fedtgp.get_config()
    config.entries, config.evaluate.every = (), 1
    config.method = method_config(name, **PAIRS[name].ours)
    config.rounds = config.evaluate.participants = _ROUNDS.value + WARM
    config.training.shuffle, config.shared_init = False, True
    config.training.clip_norm = 10.0 if PAIRS[name].clipped else 0.0
    return config


def ours(name: str) -> dict:
    """Returns processor seconds of each counted round and of its evaluation, and accuracies."""
    enable_compilation_cache()
    marks, rows = [], []

    def note(_, row):
        marks.append(time.process_time())
        rows.append(row)

    with tempfile.TemporaryDirectory(prefix="rounds") as folder:
        train_and_evaluate(configured(name), folder, note, stage=lambda line: None)
    return {
        "round": [end - start for start, end in itertools.pairwise(marks[WARM:])],
        "evaluation": [row["seconds_evaluation"] for row in rows[1 + WARM :]],
        "accuracy": [row["accuracy_weighted"] for row in rows],
    }


def write_clients(folder: Path) -> None:
    """Writes quickstart_fedtgp's clients in HtFLlib's format."""
    experiment = plan(configured("local"))
    htfllib.write_clients(folder, experiment.dataset, experiment.partitions[0])


def theirs(name: str, folder: Path) -> dict:
    """Returns HtFLlib's figures, as in `ours`; `folder` has the clients below `dataset`."""
    text = "Grey({}, args.feature_dim, args.num_classes)"
    job = htfllib.job(
        name,
        rounds=_ROUNDS.value,
        models=[text.format(width) for width in WIDTHS],
        global_model=text.format(WIDTHS[-1]),
        feature_dim=50,
        num_classes=10,
        num_clients=20,
        learning_rate=0.05,
    )
    try:
        return htfllib.run(job, _PYTHON.value, Path(_HTFLLIB.value), folder)
    except RuntimeError as error:
        raise SystemExit(error) from error


def row(name: str, folder: Path) -> tuple[list[str], str]:
    """Returns a method's cells under `HEAD`, and torch's version."""
    before = theirs(name, folder)
    measured = in_a_process(
        "benchmarks.beside_htfllib", ["--here", f"--methods={name}", f"--rounds={_ROUNDS.value}"]
    )
    after = theirs(name, folder)

    def median(rounds, what):
        return statistics.median(rounds[what])

    loops, our_seconds = (
        [median(rounds, "round") for rounds in (before, after)],
        median(measured, "round"),
    )
    cells = [
        name,
        ", ".join(map(number, loops)),
        number(median(before, "evaluation")),
        number(our_seconds),
        number(median(measured, "evaluation")),
        number(min(loops) / our_seconds),
        ", ".join(f"{100 * max(rounds['accuracy']):.1f}" for rounds in (before, measured)),
    ]
    return cells, before["torch"]


def main(_) -> None:
    on_one_core()
    if _HERE.value:
        print(json.dumps(ours(_METHODS.value[0])))
        return
    htfllib.check_checkout(_HTFLLIB.value)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_clients(Path(folder, "dataset", "clients"))
        for name in _METHODS.value:
            cells, version = row(name, Path(folder))
            rows.append(cells)
            print(*cells, sep=" | ", flush=True)
    text = (
        f"Processor's seconds of a whole round, median of {_ROUNDS.value}, one core each: "
        "quickstart_fedtgp's 20 clients with CNN-1..5, 7,492 training and 2,508 test images."
    )
    notes = f"HtFLlib under PyTorch {version}, one thread. The ratio is to the faster of its two."
    publish("\n".join([text, machine(), notes, "", table(HEAD, rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
