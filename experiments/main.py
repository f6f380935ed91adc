"""Runs an experiment: python -m experiments.main --config=experiments/configs/quickstart.py [--config.rounds=50]."""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from ml_collections import ConfigDict, config_flags
from tqdm import tqdm

from experiments.cli import fail, parse_flags
from experiments.table import human_bytes
from experiments.terminal import fitted
from experiments.train import (
    Interrupted,
    Result,
    enable_compilation_cache,
    is_primary,
    join_processes,
    train_and_evaluate,
)
from fedjax_ht.simulation.history import wire_bytes

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment, a file in experiments/configs.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of the first process of several.")
_PROCESSES = flags.DEFINE_integer("processes", None, "How many processes there are.")
_PROCESS = flags.DEFINE_integer("process", None, "Which one this is, from 0.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where to write; by default a folder in checkpoints/runs.")


class Progress:
    """A progress bar for each method: round, accuracy, seconds and bytes."""

    def __init__(self, rounds: int):
        self.rounds, self.bars, self.accuracy = rounds, {}, {}

    def __call__(self, method: str, row: dict) -> None:
        if method not in self.bars:
            self.close()  # one bar at a time
            start = row["round"] - (row["round"] > 0)
            self.bars[method] = tqdm(total=self.rounds, initial=start, desc=method.ljust(8), unit="round", leave=True)
        bar = self.bars[method]
        if "accuracy" in row:
            self.accuracy[method, row["trial"]] = 100 * row["accuracy"]
        trials = [accuracy for (name, _), accuracy in self.accuracy.items() if name == method]
        shown = f"acc {sum(trials) / len(trials):.2f} %, " if trials else ""  # a resumed run may not have evaluated yet
        bar.set_postfix_str(
            f"{shown}{row['seconds_round'] + row['seconds_evaluation']:.1f} s, "
            f"up {human_bytes(wire_bytes(row, 'uplink'))}, down {human_bytes(wire_bytes(row, 'downlink'))}"
            + (f", not finite: clients {row['not_finite']}" if row.get("not_finite") else "")
        )
        bar.update(row["round"] - bar.n)

    def close(self) -> None:
        for bar in self.bars.values():
            bar.close()


def configured() -> tuple[ConfigDict, str]:
    """The config that the command line names, and a name for it."""
    if _CONFIG.value is None:
        fail(ValueError("no --config; for example --config=experiments/configs/quickstart.py"))
    named = flags.FLAGS["config"].config_filename
    if not Path(file := named.partition(":")[0]).exists():
        fail(FileNotFoundError(f"no config file {file}"))
    return _CONFIG.value, run_name(named)


def run_name(config: str) -> str:
    """Of a config as it is named: quickstart.py -> quickstart, quickstart.py:method=fedproto -> quickstart-fedproto."""
    file, _, argument = config.partition(":")
    return "-".join([Path(file).stem, *(part.rpartition("=")[2] for part in argument.split(",") if part)])


def chosen_workdir(name: str, config: ConfigDict) -> Path:
    """What --workdir says, else a folder by this name and the config's seeds."""
    trials = f"-trials{config.trials}" if config.trials > 1 else ""
    return Path(_WORKDIR.value or f"checkpoints/runs/{name}-seed{config.seed}{trials}")


def execute(config: ConfigDict, workdir: Path) -> Result:
    """`train_and_evaluate` with progress bars; a mistake ends the program with 2, a signal with 128 + its number."""
    enable_compilation_cache()
    try:
        join_processes(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
        with contextlib.closing(Progress(config.rounds)) as progress:
            return train_and_evaluate(config, workdir, progress, warn=tqdm.write)
    except Interrupted as stop:
        print(f"{stop}; saved below {workdir}. The same command goes on from there.", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except (ValueError, FileNotFoundError, ImportError) as error:
        fail(error)


def report(summary: str, files: Sequence[Path]) -> None:
    """Prints the result and what was written, once in a run of several processes: to a terminal tables that fit, to a
    file or a pipe Markdown."""
    if is_primary():
        if sys.stdout.isatty():
            summary = fitted(summary, shutil.get_terminal_size().columns)
        print("\n".join(["", summary, "", "written:", *(f"  {path}" for path in files)]))


def main(_) -> None:
    config, name = configured()
    result = execute(config, chosen_workdir(name, config))
    report(result.summary, result.files)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
