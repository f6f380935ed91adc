"""A whole round beside HtFLlib's: the same clients, samples, models and steps, the processor's seconds of one core.

    python -m benchmarks.beside_htfllib --htfllib=PATH [--python=PYTHON] [--methods=local,fedtgp] [--out=FILE]

PATH is a checkout of github.com/TsingZ0/HtFLlib, whose code runs as it is under PYTHON, which has torch, scikit-learn
and what else it imports. The federation is the quickstart's: 20 clients, CNN-1..5, some 375 of Fashion-MNIST's images
each. A round is training, upload, server and one evaluation of all clients; theirs reads and writes every model's file,
ours writes its metrics and checkpoints, and scores the clients once more before anything comes down.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks.report import in_a_process, machine, number, publish, table
from fedjax_ht.configs import quickstart
from fedjax_ht.configs.base import method_config
from fedjax_ht.runner.build import build
from fedjax_ht.runner.cli import parse_flags
from fedjax_ht.runner.train import enable_compilation_cache, train_and_evaluate

WARM = 2  # rounds of ours that are not counted: the first compiles


class Pair(NamedTuple):
    """One method in both: ours with what of HtFLlib's defaults or scripts is a choice, and whether gradients are
    clipped; HtFLlib's module, class and arguments."""

    ours: dict
    clipped: bool
    module: str
    server: str
    arguments: dict


RELEASED = {"variant": "released"}
TGP = {"weight": 3.0, "tau": 3.0}
PAIRS = {
    "local": Pair({}, False, "serverlocal", "Local", {}),
    "lg_fedavg": Pair({}, False, "serverlg", "LG_FedAvg", {}),
    "fedproto": Pair(RELEASED | {"weight": 1.0}, False, "serverproto", "FedProto", {}),
    "fd": Pair({}, False, "serverfd", "FD", {}),
    "fedtgp": Pair(RELEASED | TGP, False, "servertgp", "FedTGP", {"lamda": 3.0, "margin_threthold": 3.0}),
    "fedgh": Pair({}, False, "servergh", "FedGH", {"server_epochs": 1}),
    "fedgen": Pair(RELEASED, False, "servergen", "FedGen", {}),
    "fml": Pair(RELEASED, True, "serverfml", "FML", {"alpha": 0.5, "beta": 0.5}),
    "fedkd": Pair(RELEASED, True, "serverkd", "FedKD", {}),
}

HEAD = (
    "method", "HtFLlib, before and after", "its evaluation", "ours", "our evaluation", "HtFLlib / ours",
    "best %, HtFLlib's and ours",
)  # fmt: skip
WIDTHS = (300, 200, 150, 100, 50)  # of the first hidden layer of CNN-1..5

_HTFLLIB = flags.DEFINE_string("htfllib", None, "A checkout of HtFLlib.")
_PYTHON = flags.DEFINE_string("python", sys.executable, "What HtFLlib runs under.")
_METHODS = flags.DEFINE_list("methods", list(PAIRS), "What to time.")
_ROUNDS = flags.DEFINE_integer("rounds", 8, "Rounds that are counted.")
_HERE = flags.DEFINE_bool("here", False, "Time our rounds of the one method here and print JSON; for the child.")
flags.register_validator("methods", set(PAIRS).issuperset, f"the methods are {', '.join(PAIRS)}")


def on_one_core() -> None:
    """For this process and those that it starts."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


def configured(name: str) -> ConfigDict:
    """The quickstart's federation with a method, run as HtFLlib runs its own: samples in stored order."""
    config = quickstart.get_config()
    config.compare, config.tuned, config.evaluate.every = (), (), 1
    config.method = method_config(name, **PAIRS[name].ours)
    config.rounds = _ROUNDS.value + WARM
    config.training.shuffle, config.shared_init = False, True
    config.training.clip_norm = 10.0 if PAIRS[name].clipped else 0.0
    return config


def ours(name: str) -> dict:
    """Processor's seconds of every counted round and of the evaluation in it, the first round's, and accuracies."""
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
    """The quickstart's clients as HtFLlib reads them."""
    experiment = build(configured("local"))
    dataset = experiment.dataset
    images = np.asarray(dataset.preprocess(np.asarray(dataset.inputs))).transpose(0, 3, 1, 2)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for i, client in enumerate(experiment.partitions[0]):
            own = getattr(client, part)
            np.savez(folder / part / f"{i}.npz", data={"x": images[own], "y": np.asarray(dataset.labels)[own]})


def theirs(name: str, folder: Path) -> dict:
    """As `ours`, of HtFLlib; `folder` has the clients below `dataset`."""
    pair = PAIRS[name]
    text = "Grey({}, args.feature_dim, args.num_classes)"
    arguments = {  # main.py's defaults, then the federation's
        "random_join_ratio": False, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0,
        "time_select": False, "time_threthold": 10000, "auto_break": False, "goal": "test", "top_cnt": 100,
        "lamda": 1.0, "noise_dim": 512, "hidden_dim": 512, "generator_learning_rate": 0.005, "server_epochs": 100,
        "alpha": 1.0, "beta": 1.0, "mentee_learning_rate": 0.01, "T_start": 0.95, "T_end": 0.98,
        "server_learning_rate": 0.01, "margin_threthold": 100.0,
        "algorithm": pair.server, "dataset": "clients", "device": "cpu", "num_classes": 10, "num_clients": 20,
        "feature_dim": 50, "join_ratio": 1.0, "batch_size": 10, "local_epochs": 1, "local_learning_rate": 0.05,
        "eval_gap": 1, "models": [text.format(w) for w in WIDTHS], "global_model": text.format(WIDTHS[-1]),
    }  # fmt: skip
    job = {"module": pair.module, "server": pair.server, "rounds": _ROUNDS.value + 1}
    job["arguments"] = arguments | pair.arguments
    (folder / "system").mkdir(exist_ok=True)  # it reads ../dataset
    script = Path(__file__).with_name("htfllib_rounds.py")
    command = [_PYTHON.value, str(script), str(Path(_HTFLLIB.value, "system").resolve()), json.dumps(job)]
    done = subprocess.run(command, cwd=folder / "system", capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, folder: Path) -> tuple[list[str], str]:
    """The cells under `HEAD`, and torch's version."""
    before = theirs(name, folder)
    own = in_a_process("benchmarks.beside_htfllib", ["--here", f"--methods={name}", f"--rounds={_ROUNDS.value}"])
    after = theirs(name, folder)
    median = lambda found, what: statistics.median(found[what])  # noqa: E731
    loops, mine = [median(found, "round") for found in (before, after)], median(own, "round")
    cells = [
        name,
        ", ".join(map(number, loops)),
        number(median(before, "evaluation")),
        number(mine),
        number(median(own, "evaluation")),
        number(min(loops) / mine),
        ", ".join(f"{100 * max(found['accuracy']):.1f}" for found in (before, own)),
    ]
    return cells, before["torch"]


def main(_) -> None:
    on_one_core()
    if _HERE.value:
        print(json.dumps(ours(_METHODS.value[0])))
        return
    if not Path(_HTFLLIB.value or "", "system", "flcore").is_dir():
        raise app.UsageError(f"--htfllib is {_HTFLLIB.value}; it must be a checkout of HtFLlib, with system/flcore")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_clients(Path(folder, "dataset", "clients"))
        for name in _METHODS.value:
            cells, version = row(name, Path(folder))
            rows.append(cells)
            print(*cells, sep=" | ", flush=True)
    text = (
        f"Processor's seconds of a whole round, median of {_ROUNDS.value}, one core each: the quickstart's 20 clients "
        "with CNN-1..5, 7,492 training and 2,508 test images."
    )
    notes = f"HtFLlib under PyTorch {version}, one thread. The ratio is to the faster of its two."
    publish("\n".join([text, machine(), notes, "", table(HEAD, rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
