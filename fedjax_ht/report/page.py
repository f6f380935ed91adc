"""The contents of a run's page and of its printed result: which entries, and which tables of them.
The choice is kept beside the page, so that `fedjax-ht report` shows the same."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.entries import Entry, described
from fedjax_ht.experiment.run_folder import naming, read_json
from fedjax_ht.report import table
from fedjax_ht.report.costs import Aim, costs
from fedjax_ht.report.report import warnings
from fedjax_ht.report.statistics import differences_to_first, headline
from fedjax_ht.simulation.history import Row

FILE = "report.json"


class Page(NamedTuple):
    """The contents of report.html.

    Attributes:
      labels: of the entries, in order; the others are compared with the first.
      aim: of a comparison's table of costs; None for a run's own table.
      command: how to repeat the run: command, versions, machine and commit, a line each.
    """

    labels: tuple[str, ...]
    aim: Aim | None
    command: str


def write_page(page: Page, workdir: Path) -> None:
    """Writes report.json into a run's folder."""
    aim = None if page.aim is None else page.aim._asdict()
    with atomic_open(workdir / FILE) as file:
        json.dump({"labels": page.labels, "aim": aim, "command": page.command}, file, indent=2)


def read_page(workdir: Path) -> Page | None:
    """Reads a run's report.json; None where there is none, as in a folder of an earlier version.

    Raises:
      ValueError: it is not what a run writes. One line.
    """
    path = workdir / FILE
    if not path.exists():
        return None
    fields = read_json(path)
    with naming(path):
        aim = None if fields["aim"] is None else Aim(**fields["aim"])
        return Page(tuple(fields["labels"]), aim, fields["command"])


def results(histories: Mapping[str, Sequence[Row]], aim: Aim | None) -> str:
    """The first table, in Markdown: of a comparison with what an accuracy costs, else of a run."""
    return table.markdown(histories) if aim is None else costs(histories, *aim).text


def text_of(
    histories: Mapping[str, Sequence[Row]], entries: Iterable[Entry], aim: Aim | None
) -> str:
    """Returns what a command prints, in Markdown: the result in a sentence, warnings, tables, and
    the entries' settings."""
    parts = [headline(histories)]
    if lines := warnings(histories):
        parts += ["To watch:", "\n".join(f"* {line}" for line in lines)]
    parts.append(results(histories, aim))
    if aim is not None:
        parts.append(differences_to_first(histories))
    return "\n\n".join(filter(None, [*parts, described(list(entries))]))
