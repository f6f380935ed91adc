"""Tables for people: what Markdown files hold in full, aligned and within a terminal's width."""

import io
import re
import textwrap

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_ht.report.costs import FLOPS, UPLINK

LATER = ("± clients", "weighted %", "worst 10 %", "server's model %", UPLINK, FLOPS, "seconds")
"""Columns that go first where there is no room for all."""


def fitted(text: str, width: int) -> str:
    """`text` with every Markdown table in it aligned, and with as many of its columns as `width`
    has room for; those left out are named below it."""
    return re.sub(
        r"(?:^\|.*\|$\n?)+", lambda found: _aligned(found.group(), width), text, flags=re.MULTILINE
    )


def _aligned(table: str, width: int) -> str:
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()
    )
    widths = [max(map(len, column)) + 2 for column in zip(head, *rows)]
    wanted = sorted(range(1, len(head)), key=lambda i: (head[i] in LATER, i))
    shown, used = [0], widths[0]
    for column in wanted:
        if used + widths[column] <= width:
            shown.append(column)
            used += widths[column]
    shown.sort()
    aligned = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown:
        aligned.add_column(head[column], justify="right" if column else "left", no_wrap=True)
    for row in rows:
        aligned.add_row(*(row[column] for column in shown))
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False)
    console.print(aligned)
    left_out = [name for i, name in enumerate(head) if i not in shown]
    note = textwrap.fill(f"(no room for {', '.join(left_out)})", width) + "\n" if left_out else ""
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + f"\n{note}"
