"""Reads the queue, experiments/queue/commands.txt: its rows, and what each command would run.

A row begins with a line "# row 1 (3 core-hours): what it settles", followed by one command of
`fedjax-ht` per line, which ends with --workdir=$RUNS/NAME. $RUNS is the folder of all runs. Entries
chosen by an earlier command are written as --methods="$(python -m experiments.chosen ...)".
"""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from experiments.chosen import entries_with
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import define_config
from fedjax_ht.lab.config.entries import entries_of, only
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.compare import comparison
from fedjax_ht.lab.runs.search import rounds_planned, rungs
from fedjax_ht.lab.runs.spaces import parse_space, points_of

QUEUE = Path(__file__).parent / "queue" / "commands.txt"
HEADING = re.compile(r"# row (\d+) \((.+) core-hours?\): (.+)")
COMMAND = re.compile(r"fedjax-ht (compare|sweep) (.+) --workdir=\$RUNS/([\w-]+)")
CHOICE = re.compile(r'"\$\(python -m experiments\.chosen --runs=\$RUNS (.+)\)"')


class Command(NamedTuple):
    """One command.

    Attributes:
      name: name of its folder.
      kind: "compare" or "sweep".
      arguments: arguments as written, without --workdir.
    """

    name: str
    kind: str
    arguments: str


class QueueRow(NamedTuple):
    """A row of the queue: its number, an estimate, what it settles, and its commands."""

    number: int
    hours: str
    settles: str
    commands: list[Command]


class Plan(NamedTuple):
    """A command's run.

    Attributes:
      config: config with all entries; for a sweep, its points.
      rounds: rounds of all entries together.
    """

    config: Config
    rounds: int


def read_queue(path: Path = QUEUE) -> list[QueueRow]:
    """Reads the rows of a queue.

    Raises:
      ValueError: a line is neither a row's heading nor a command, a command precedes the first row,
        or two commands have one name. One line.
    """
    rows: list[QueueRow] = []
    names: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        heading, command = HEADING.fullmatch(line), COMMAND.fullmatch(line)
        if heading:
            rows.append(QueueRow(int(heading[1]), heading[2], heading[3], []))
        elif not command or not rows or command[3] in names:
            raise ValueError(
                f"{path}, line {number}: expected '# row N (H core-hours): ...', or below it "
                "'fedjax-ht compare|sweep ... --workdir=$RUNS/NAME' with a NAME of its own, and "
                f"found {line!r}"
            )
        else:
            kind, arguments, name = command.groups()
            names.add(name)
            rows[-1].commands.append(Command(name, kind, arguments))
    return rows


def plans_of(rows: Sequence[QueueRow]) -> dict[str, Plan]:
    """Returns what each command runs, by name, before anything has run.

    The choice of a search is its --entry, and that of a comparison its --method.

    Raises:
      ValueError: a command is wrong, or uses the choice of one that does not precede it. One line.
    """
    plans: dict[str, Plan] = {}
    chosen: dict[str, str] = {}  # name of a search -> its entry
    for command in [command for row in rows for command in row.commands]:
        choice = CHOICE.search(command.arguments)
        entries = ""
        if choice:
            entries = ",".join(choices(choice[1], chosen, plans))
        arguments = CHOICE.sub(lambda _, text=entries: text, command.arguments)
        plans[command.name], entry = plan_of(command.kind, shlex.split(arguments))
        if entry is not None:
            chosen[command.name] = entry
    return plans


def choices(arguments: str, searches: Mapping[str, str], known: Mapping[str, Plan]) -> list[str]:
    """Returns the entries that `experiments.chosen` would print.

    Args:
      arguments: its flags and folders, without --runs.
      searches: name -> entry of earlier searches.
      known: earlier commands by name.

    Raises:
      ValueError: no earlier command has a name, or a comparison has no --method. One line.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--method")
    parser.add_argument("--score")
    parser.add_argument("--with", dest="settings", default="")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args(shlex.split(arguments))
    entries = []
    for name in options.names:
        if name not in known:
            raise ValueError(f"no command before it makes {name}, which it takes its entries from")
        entry = searches.get(name, options.method)
        if entry is None:
            raise ValueError(f"{name} is a comparison; --method says of which entries it chooses")
        entries += entries_with(entry, list(filter(None, options.settings.split(","))))
    return entries


def plan_of(kind: str, arguments: Sequence[str]) -> tuple[Plan, str | None]:
    """Parses a command as `fedjax-ht` does; returns what it runs, and a sweep's --entry.

    Raises:
      ValueError, absl's errors of flags: the command is wrong. One line.
    """
    values = flags.FlagValues()
    define_config(values)
    if kind == "compare":
        flags.DEFINE_list("methods", None, "", flag_values=values)
        flags.DEFINE_integer("trials", None, "", flag_values=values)
        # its search precedes it, and is not counted
        flags.DEFINE_integer("fair", None, "", flag_values=values)
    else:
        flags.DEFINE_string("entry", None, "", flag_values=values)
        flags.DEFINE_multi_string("over", [], "", flag_values=values)
        flags.DEFINE_integer("draws", None, "", flag_values=values)
        flags.DEFINE_integer("halvings", 0, "", flag_values=values)
    values(["fedjax-ht", *arguments])
    config = typed_config(values.config.fields)
    if kind == "compare":
        config = comparison(config, values.methods, values.trials)
        return Plan(config, config.rounds * len(entries_of(config))), None
    points = points_of(values.entry, parse_space(values.over), values.draws)
    config = only(config, points)
    rounds = rounds_planned(len(points), rungs(config.rounds, values.halvings))
    return Plan(config, rounds), values.entry
