"""Tabulates the progress of the queue of runs.

    python -m experiments.queue_status --runs=RUNS [--table=FILE.md]

Reads experiments/queue/commands.txt and the folders of its commands below --runs, and trains
nothing. Rounds are those of all entries together, for a search those of all points; each trains the
seeds in its row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from experiments.queue_commands import Plan, QueueRow, plans_of, read_queue
from experiments.run_folders import runs_of
from experiments.searches import RECORD, Search, final_scores, read_search
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.runs.folder import read_folder
from fedjax_ht.lab.runs.search import rounds_trained

# allow_override: other programs have flags of these names, and one process may import several
_RUNS = flags.DEFINE_string(
    "runs", "checkpoints/runs/queue", "The folder of all runs.", allow_override=True
)
_TABLE = flags.DEFINE_string(
    "table", None, "Where to write the table; it is printed, too.", allow_override=True
)

HEAD = ("row", "settles", "core-hours", "run", "rounds", "of", "seeds", "state")


class Progress(NamedTuple):
    """Progress of a command.

    Attributes:
      rounds: rounds of all entries, or of a search's scored points, together.
      begun, done: True if it has begun, and if nothing is left.
    """

    rounds: int
    begun: bool
    done: bool

    @property
    def state(self) -> str:
        """Returns "not begun", "begun" or "done"."""
        if self.done:
            return "done"
        return "begun" if self.begun else "not begun"


def progress(path: Path, plan: Plan) -> Progress:
    """Reads the progress of the command of a folder.

    Raises:
      ValueError, OSError: the folder is not one of a run. One line.
    """
    if not (path / "config.json").exists():
        return Progress(rounds=0, begun=False, done=False)
    if (path / RECORD).exists():
        return progress_of_search(read_search(path))
    folder = read_folder(path)
    rounds = 0
    for label in folder.entries:
        rounds += max((history[-1]["round"] for history in runs_of(folder, label)), default=0)
    return Progress(rounds=rounds, begun=True, done=rounds >= plan.rounds)


def progress_of_search(search: Search) -> Progress:
    """Counts the rounds of all scored points."""
    rounds = rounds_trained(search.scores)
    try:
        final_scores(search)
    except ValueError:  # unfinished
        return Progress(rounds=rounds, begun=True, done=False)
    return Progress(rounds=rounds, begun=True, done=True)


def table_of(rows: Sequence[QueueRow], runs: Path) -> Table:
    """Makes a table with a row per command.

    Args:
      rows: rows of the queue.
      runs: folder of all runs.

    Raises:
      ValueError, OSError: a command or a folder is wrong. One line.
    """
    plans, lines = plans_of(rows), []
    for row in rows:
        about = [str(row.number), row.settles, row.hours]
        for command in row.commands:
            plan = plans[command.name]
            done = progress(runs / command.name, plan)
            seeds = range(plan.config.seed, plan.config.seed + plan.config.trials)
            cells = [f"{done.rounds:,}", f"{plan.rounds:,}", ", ".join(map(str, seeds)), done.state]
            lines.append([*about, command.name, *cells])
            about = ["", "", ""]  # once per row
    return Table(HEAD, lines)


@orderly_main
def main(_) -> None:
    text = table_of(read_queue(), Path(_RUNS.value)).markdown()
    print(text)
    if _TABLE.value:
        write_whole(_TABLE.value, text + "\n")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
