"""The contents of a run's page: which entries, and which tables of them.

The choice is kept beside the page, so that `fedjax-ht report` shows the same.
"""

import json
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.costs import Aim
from fedjax_ht.lab.runs.json_files import naming, read_json

FILE = "report.json"


class Page(NamedTuple):
    """The contents of report.html.

    Attributes:
      labels: labels of the entries, in order.
      aim: the target of a comparison's table of costs; None for a run's own table.
      command: the instructions to repeat the run: command, versions, machine and commit, a line
        each.
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
