"""Plays a config file's run to its end over and over, killing it by SIGKILL, until it has been
killed so many times.

python -m tests.lab.runs.killed CONFIG.py FOLDER KILLS

Every life is a fork of a process that has imported everything and started nothing. It dies at a
random moment, or inside the write of a checkpoint: before or after one of its steps, or while the
arrays are written. A line is printed for each death, and for whatever the run says.
"""

import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.runs import train
from tests.runs import config_of


def say(event: str) -> None:
    os.write(1, f"{event}\n".encode())


def die(event: str) -> None:
    say(f"killed {event}")
    os.kill(os.getpid(), signal.SIGKILL)


def die_later(seconds: float, event: str) -> None:
    threading.Thread(target=lambda: (time.sleep(seconds), die(event)), daemon=True).start()


def die_in_a_write(rng: random.Random) -> None:
    """Arms one of the steps of a checkpoint's write, some steps from now."""
    left = itertools.count(-rng.randrange(40))
    how = rng.choice(["before", "after", "in"])

    def armed(owner, name):
        whole = getattr(owner, name)

        def step(*args, **kwargs):
            now = next(left) == 0
            if now and how == "in":
                die_later(rng.uniform(0, 0.03), "inside a write")
            if now and how == "before":
                die("inside a write")
            result = whole(*args, **kwargs)
            if now and how == "after":
                die("inside a write")
            return result

        setattr(owner, name, step)

    for owner, name in (
        (np, "savez"),
        (sealed, "place"),
        (sealed.shutil, "rmtree"),
        (sealed.os, "rename"),
    ):
        armed(owner, name)


def live(config: Path, workdir: Path, seed: int) -> None:
    rng = random.Random(seed)
    train.write_results = lambda *args: []
    if seed % 2:
        die_in_a_write(rng)

    def progress(name, row):
        if seed % 2 == 0 and row["round"] and not progress.armed:
            progress.armed = True
            die_later(rng.uniform(0, 1), "at a random moment")

    progress.armed = False
    enable_compilation_cache()
    train.train_and_evaluate(
        config_of(config), workdir, progress, warn=lambda line: say(f"said {line}")
    )


def main(config: Path, folder: Path, kills: int) -> None:
    killed, runs = 0, 0
    while killed < kills:
        runs += 1
        code = None
        while code != 0:
            child = os.fork()
            if child == 0:
                try:
                    live(config, folder / f"run_{runs}", seed=killed)
                except BaseException as error:
                    say(f"failed {type(error).__name__}: {error}")
                    os._exit(1)
                os._exit(0)
            # the next life finds the lock of a dead one
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            killed += code == -signal.SIGKILL
            if code == 1:
                sys.exit(1)
        say(f"finished run_{runs}")
        shutil.rmtree(folder / f"run_{runs}" / "plots", ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
