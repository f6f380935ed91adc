"""Runs an experiment: fedjax-ht run --config=quickstart [--config.rounds=50]."""

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict
from tqdm import tqdm

from fedjax_ht.report.bad_clients import Notes, place_of
from fedjax_ht.report.costs import Aim
from fedjax_ht.report.document import Document
from fedjax_ht.report.table import human_bytes
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.config_files import define_config
from fedjax_ht.runner.train import (
    Alone,
    GaveUp,
    Interrupted,
    Result,
    Unwritable,
    enable_compilation_cache,
    is_primary,
    join_processes,
    train_and_evaluate,
)
from fedjax_ht.simulation.history import wire_bytes

_CONFIG = define_config()
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of the first process of several."
)
_PROCESSES = flags.DEFINE_integer("processes", None, "How many processes there are.")
_PROCESS = flags.DEFINE_integer("process", None, "Which one this is, from 0.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where to write; by default a folder in checkpoints/runs."
)


class Progress:
    """Shows round, accuracy, seconds and bytes of each entry: a bar on a terminal, elsewhere a line
    an evaluation, by the last trial. Trouble of any trial is a line at once, see
    `bad_clients.Notes`. The time that is left is reckoned without the first round, which
    compiles."""

    def __init__(self, rounds: int, trials: int):
        self.rounds, self.trials, self.bars, self.accuracy = rounds, trials, {}, {}
        self.seconds: dict[str, list[float]] = {}
        self.notes = Notes()

    def __call__(self, label: str, row: dict) -> None:
        for note in self.notes.of(label, row):
            tell(f"{place_of(label, row, self.trials)}: {note}")
        if "accuracy" in row:
            self.accuracy[label, row["trial"]] = 100 * row["accuracy"]
        accuracies = [accuracy for (name, _), accuracy in self.accuracy.items() if name == label]
        seconds = row["seconds_round"] + row["seconds_evaluation"]
        # A resumed run may not have evaluated yet.
        parts = [f"acc {sum(accuracies) / len(accuracies):.2f} %"] if accuracies else []
        parts.append(f"{seconds:.1f} s")
        parts += [f"{way} {human_bytes(wire_bytes(row, f'{way}link'))}" for way in ("up", "down")]
        if sys.stderr.isatty():
            self.draw(label, row["round"], ", ".join(parts))
        elif row["trial"] == self.trials - 1:
            self.seconds.setdefault(label, []).append(seconds)
            if "accuracy" in row:
                # behind the untrained federation and the first round
                usual = self.seconds[label][2:]
                left = (self.rounds - row["round"]) * sum(usual) / max(1, len(usual))
                parts += [f"{tqdm.format_interval(left)} left"] if left else []
                tell(f"{label}, round {row['round']} of {self.rounds}: {', '.join(parts)}")

    def draw(self, label: str, round: int, words: str) -> None:
        if label not in self.bars:
            self.close()  # one bar at a time
            start = round - (round > 0)
            self.bars[label] = tqdm(
                total=self.rounds, initial=start, desc=label.ljust(8), unit="round", leave=True
            )
        bar = self.bars[label]
        bar.set_postfix_str(words)
        first = bar.n == bar.initial and round > bar.n
        bar.update(round - bar.n)
        if first:
            bar.start_t, bar.initial = time.time(), bar.n

    def close(self) -> None:
        for bar in self.bars.values():
            bar.close()


def configured() -> tuple[ConfigDict, str]:
    """The config that the command line names, and a name for it."""
    if _CONFIG.value is None:
        fail(ValueError("no --config; for example --config=quickstart"))
    return _CONFIG.value, run_name(flags.FLAGS["config"].config_filename)


def run_name(config: str) -> str:
    """Of a config as it is named: quickstart.py -> quickstart, quickstart.py:method=fedproto ->
    quickstart-fedproto."""
    file, _, argument = config.partition(":")
    return "-".join(
        [Path(file).stem, *(part.rpartition("=")[2] for part in argument.split(",") if part)]
    )


def chosen_workdir(name: str, config: ConfigDict) -> Path:
    """What --workdir says, else a folder by this name and the config's seeds."""
    trials = f"-trials{config.trials}" if config.trials > 1 else ""
    return Path(_WORKDIR.value or f"checkpoints/runs/{name}-seed{config.seed}{trials}")


def tell(line: str) -> None:
    """Says it above a progress bar."""
    tqdm.write(line, file=sys.stderr)


def execute(config: ConfigDict, workdir: Path, aim: Aim | None = None) -> Result:
    """Calls `train_and_evaluate` with progress bars, in an `orderly` program, and prints the result
    before anything is drawn."""
    with contextlib.closing(Progress(config.rounds, config.trials)) as progress:

        def show_result(text: Document) -> None:
            progress.close()  # the last bar would be drawn again below the table
            print_result(text)

        return train_and_evaluate(config, workdir, progress, tqdm.write, tell, aim, show_result)


@contextlib.contextmanager
def orderly(workdir: Path) -> Iterator[None]:
    """Within it the processes of a run are joined and programs are cached; a mistake ends the
    program with 2, what cannot be written once it has begun with 1, a signal with 128 + its
    number."""
    enable_compilation_cache()
    try:
        join_processes(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
        yield
    except Interrupted as stop:
        print(
            f"{stop}; what was done is saved below {workdir}. The same command goes on from there.",
            file=sys.stderr,
        )
        sys.exit(128 + stop.signal)
    except Alone as error:
        fail(error, at_once=True)
    except (Unwritable, GaveUp) as error:
        fail(error, code=1)
    except (ValueError, OSError, ImportError) as error:
        fail(error)


def print_result(text: Document) -> None:
    """Prints a result: to a terminal with tables that fit, to a file or a pipe as Markdown."""
    shown = text.markdown()
    if sys.stdout.isatty():
        shown = text.terminal(shutil.get_terminal_size().columns)
    print(f"\n{shown}\n", flush=True)


def print_files(files: Sequence[Path]) -> None:
    """Prints what was written, once in a run of several processes."""
    if is_primary() and files:
        print("\n".join(["written:", *(f"  {path}" for path in files)]))


def main(_) -> None:
    config, name = configured()
    workdir = chosen_workdir(name, config)
    with orderly(workdir):
        result = execute(config, workdir)
    print_files(result.files)
