"""Reads experiments/results/coverage.toml: which parts of the five papers were run, and how.

The file's head explains the fields; `experiments.paper_tables` makes coverage.md from it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.paper_manifest import filled, read_toml
from experiments.paper_parts import wrapped
from fedjax_ht.lab.report.document import Table

RECORDED = ("paper's setting", "small form")
STATUSES = (*RECORDED, "not run", "needs code")
NEEDS = ("hours", "data", "generator", "GPU", "code")
HEAD = ("table or figure", "shows", "status", "what the rest needs", "core-hours", "results, notes")


class Item(NamedTuple):
    """A table or figure of a paper, or some of its columns; `note` is in Markdown."""

    item: str
    shows: str
    status: str
    needs: Sequence[str] = ()
    hours: str = ""
    note: str = ""
    commands: Sequence[str] = ()


class Paper(NamedTuple):
    """A paper's tables and figures, and the setting that they share."""

    name: str
    setting: str
    items: Sequence[Item]


def read_coverage(path: Path) -> list[Paper]:
    """Reads the papers of a coverage file.

    Raises:
      ValueError: it is not a TOML file, or an entry has an unknown field, status or need, or lacks
        a field. One line.
    """
    papers = []
    for values in read_toml(path).get("papers", ()):
        paper = filled(Paper, values, "papers")
        items = [filled(Item, item, paper.name) for item in values["items"]]
        for item in items:
            check_item(item, paper.name)
        papers.append(paper._replace(items=items))
    return papers


def check_item(item: Item, paper: str) -> None:
    """Raises ValueError for an unknown status or need, a missing reason, or an incomplete note.

    Items that were not run need a reason; the note of others must link to results or name tests.
    """
    if item.status not in STATUSES:
        raise ValueError(
            f"{paper}, {item.item}: the status is {item.status!r}; it must be one of "
            f"{', '.join(STATUSES)}"
        )
    for need in item.needs:
        if need not in NEEDS:
            raise ValueError(
                f"{paper}, {item.item}: {need!r} is no need; there are {', '.join(NEEDS)}"
            )
    if item.status == "not run" and not item.needs:
        raise ValueError(f"{paper}, {item.item} was not run; `needs` must say why")
    if item.status in RECORDED and not re.search(r"\]\(|`tests/", item.note):
        raise ValueError(f"{paper}, {item.item} was run; `note` must link to the results")


def coverage_markdown(papers: Sequence[Paper]) -> str:
    """Makes, for each paper, a table of its items and the commands for them."""
    return "\n\n".join(map(paper_markdown, papers))


def counts_markdown(papers: Sequence[Paper]) -> str:
    """Counts each paper's items by status, and those with an accuracy in the paper's setting."""
    items = [item for paper in papers for item in paper.items]
    in_setting = [item for item in items if item.status == RECORDED[0]]
    trained = [item for item in in_setting if item.hours]
    text = (
        f"**{len(trained)} of {len(items)} rows have an accuracy in the paper's setting.** "
        f"{len(in_setting) - len(trained)} more are in it without any training. By [the rule for "
        "claims](papers.md#when-a-claim-stands) a small form has its own verdict."
    )
    rows = []
    for paper in papers:
        counts = Counter(item.status for item in paper.items)
        numbers = [counts[status] for status in STATUSES]
        rows.append([paper.name, *map(str, [*numbers, len(paper.items)])])
    return f"{wrapped(text)}\n\n{Table(['paper', *STATUSES, 'items'], rows).markdown()}"


def paper_markdown(paper: Paper) -> str:
    """Makes a paper's section."""
    rows, commands = [], []
    for item in paper.items:
        needs, note = ", ".join(item.needs), " ".join(item.note.split())
        rows.append([item.item, item.shows, item.status, needs, item.hours, note])
        if item.commands:
            commands.append(f"# {item.item}")
            commands += [f"fedjax-ht {command}" for command in item.commands]
    setting = wrapped(paper.setting)
    code = "\n".join(["```sh", *commands, "```"])
    return "\n\n".join([f"## {paper.name}", setting, Table(HEAD, rows).markdown(), code])
