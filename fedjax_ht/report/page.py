"""The contents of a run's page and of its printed result: which entries, and which tables of them.
The choice is kept beside the page, so that `fedjax-ht report` shows the same."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.entries import Entry
from fedjax_ht.experiment.json_files import naming, read_json
from fedjax_ht.report.costs import Aim, costs
from fedjax_ht.report.document import Block, Bullets, Document, Paragraph
from fedjax_ht.report.report import entry_settings
from fedjax_ht.report.results import run_results
from fedjax_ht.report.run_warnings import warnings
from fedjax_ht.report.statistics import best_entry, differences_to_first, headline
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


def results(histories: Mapping[str, Sequence[Row]], aim: Aim | None) -> Document:
    """Makes the first table: of a comparison with what an accuracy costs, else of a run."""
    winner = best_entry(histories) if len(histories) > 1 else None
    if aim is None:
        return run_results(histories, winner)
    return costs(histories, *aim, winner=winner).text


def text_of(
    histories: Mapping[str, Sequence[Row]], entries: Iterable[Entry], aim: Aim | None
) -> Document:
    """Makes what a command prints: the result in a sentence, warnings, tables, and the entries'
    settings."""
    blocks: list[Block] = []
    if sentence := headline(histories):
        blocks.append(Paragraph(sentence))
    if lines := warnings(histories):
        blocks += [Paragraph("To watch:"), Bullets(lines)]
    blocks.append(results(histories, aim))
    if aim is not None and len(histories) > 1:
        blocks.append(differences_to_first(histories))
    return Document([*blocks, entry_settings(entries)])
