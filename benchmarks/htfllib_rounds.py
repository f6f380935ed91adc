"""Times rounds of one of HtFLlib's methods, unchanged; `benchmarks.htfllib` starts it.

    python htfllib_rounds.py SYSTEM JSON

SYSTEM is the folder `system` of a checkout; JSON holds "module" and "server", the class that runs
the method, "rounds", "clock" and "arguments", those of its main.py. It runs under any Python with
HtFLlib's imports, in a folder beside `dataset`. It prints JSON: seconds of every round but the
first, and of the evaluation in it, and accuracies. The clock is "processor", on one thread, or
"wall".
"""

import contextlib
import importlib
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from argparse import Namespace

import torch
from torch import nn


class Grey(nn.Module):
    """CNN-1..5 for grey images of 28x28 pixels, which HtFLlib can split into base and head."""

    def __init__(self, width: int, features: int, num_classes: int):
        super().__init__()

        def block(ins, outs):
            return (nn.Conv2d(ins, outs, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))

        hidden = (
            nn.Linear(320, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, features),
            nn.ReLU(inplace=True),
        )
        self.body = nn.Sequential(*block(1, 20), *block(20, 20), nn.Flatten(), *hidden)
        self.fc = nn.Linear(features, num_classes)

    def forward(self, x):
        return self.fc(self.body(x))


def wall_clock() -> float:
    """Returns wall seconds, after a GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


CLOCKS = {"processor": time.process_time, "wall": wall_clock}


def end_with_parent() -> None:
    """Ends this process soon after its parent, which may be killed at any time."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def rounds(module: str, server: str, rounds: int, clock: str, arguments: dict) -> dict:
    """Runs rounds and times each from one evaluation to the next; see the module's docstring.

    HtFLlib runs a round more than its argument says.
    """
    models = importlib.import_module("flcore.trainmodel.models")
    models.Grey = Grey  # a model is a text that HtFLlib evaluates there
    marks, evaluations, now = [], [], CLOCKS[clock]
    with tempfile.TemporaryDirectory(prefix="rounds") as folder:
        args = Namespace(**arguments, global_rounds=rounds, save_folder_name=folder)
        run = getattr(importlib.import_module(f"flcore.servers.{module}"), server)(args, 0)
        evaluate = run.evaluate

        def timed_evaluation():
            marks.append(now())
            evaluate()
            evaluations.append(now() - marks[-1])

        run.evaluate, run.save_results = timed_evaluation, lambda: None
        run.train()
    spent = [end - start for start, end in itertools.pairwise(marks[1:])]
    return {
        "round": spent,
        "evaluation": evaluations[1:],
        "accuracy": run.rs_test_acc,
        "torch": torch.__version__,
    }


def main(system: str, job: str) -> None:
    # it stores whole modules, which torch rejects from 2.6 on
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    sys.path.insert(0, system)
    end_with_parent()
    arguments_of_rounds = json.loads(job)
    if arguments_of_rounds["clock"] == "processor":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        result = rounds(**arguments_of_rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
