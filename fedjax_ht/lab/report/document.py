"""Paragraphs, lists and tables as values, with output as Markdown, HTML, CSV or for a terminal.

Also the formats of cells, and the HTML of a page in the style of page.css.
"""

import base64
import dataclasses
import html
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from fedjax_ht.lab.files import csv_text
from fedjax_ht.simulation.rows import Row

MAIN_COLUMNS = 6
"""Columns that a page shows at first; it folds the others."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text.

        >>> table = Table(["method", "accuracy %"], [["local", "75.7"], ["fedssa", "76.8"]])
        >>> print(table.markdown())
        | method | accuracy % |
        | --- | --- |
        | local | 75.7 |
        | fedssa | 76.8 |

    Attributes:
      head: titles of the columns; the first column names the rows.
      rows: cells; each row is as long as the head.
      importance: titles of columns to keep if there is no room for all, the most important first.
        Titles that are missing here come last, in the order of `head`.
      winner: first cell of the row whose cell in the most important column a page highlights; None
        highlights none. The row may lose in its other columns.

    Raises:
      ValueError: a row is shorter or longer than the head.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    importance: Sequence[str] = ()
    winner: str | None = None

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(
                    f"the row {', '.join(row)} has {len(row)} cells; the head has {len(self.head)}"
                )

    def markdown(self) -> str:
        """Returns the table in Markdown. Cells must be Markdown, and are not escaped."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def csv(self) -> str:
        """Returns the table as CSV, see `files.csv_text`."""
        return csv_text([self.head, *self.rows])

    def html(self) -> str:
        """Returns the six most important columns as an HTML table, the others folded below it."""
        main = self._most_important()[:MAIN_COLUMNS]
        folded = sorted(set(range(len(self.head))) - set(main))
        if not folded:
            return self._html(main)
        more = f"<details><summary>More columns</summary>{self._html([0, *folded])}</details>"
        return self._html(main) + more

    def terminal(self, width: int) -> str:
        """Returns the most important columns that fit into `width` characters, aligned.

        The titles of the omitted columns follow.
        """
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows)]
        kept, used = [0], widths[0]
        for column in self._most_important()[1:]:
            if used + 2 + widths[column] <= width:
                kept.append(column)
                used += 2 + widths[column]
        kept.sort()
        lines = [_aligned(cells, widths, kept) for cells in (self.head, *self.rows)]
        lines.insert(1, "─" * used)
        if len(kept) < len(self.head):
            titles = (title for i, title in enumerate(self.head) if i not in kept)
            lines.append(textwrap.fill(f"(no room for {', '.join(titles)})", width))
        return "\n".join(lines)

    def _most_important(self) -> list[int]:
        """Returns the indices of all columns, the most important first."""
        ranks = dict(zip(self.importance, itertools.count()))

        def rank(column: int) -> int:
            return ranks.get(self.head[column], len(ranks))

        # sorted() is stable: columns of equal rank stay in the order of the head.
        return [0, *sorted(range(1, len(self.head)), key=rank)]

    def _html(self, columns: Collection[int]) -> str:
        columns = sorted(columns)
        lines = [_html_row("th", self.head, columns)]
        for row in self.rows:
            marked = self._most_important()[1] if row[0] == self.winner else None
            lines.append(_html_row("td", row, columns, marked))
        return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _html_row(
    tag: str, cells: Sequence[str], columns: Iterable[int], marked: int | None = None
) -> str:
    shown = ""
    for i in columns:
        style = ' class="best"' if i == marked else ""
        shown += f"<{tag}{style}>{html.escape(cells[i])}</{tag}>"
    return f"<tr>{shown}</tr>"


def _aligned(cells: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    """Joins the cells of a row: the first column left-aligned, the others right-aligned."""
    padded = [cells[0].ljust(widths[0])]
    padded += [cells[i].rjust(widths[i]) for i in columns[1:]]
    return "  ".join(padded).rstrip()


def table_of(
    rows: Sequence[Mapping[str, str]],
    titles: Sequence[str],
    importance: Sequence[str] = (),
    winner: str | None = None,
    missing: str = "-",
) -> Table:
    """Makes a table from rows that need not have the same columns.

    Args:
      rows: a row's cells by title.
      titles: titles of all columns, in order; those without a cell in any row are omitted.
      importance, winner: the fields of `Table`.
      missing: the cell of a row that lacks a column of another row.
    """
    present = set().union(*rows)
    head = [title for title in titles if title in present]
    cells = [[row.get(title, missing) for title in head] for row in rows]
    return Table(head, cells, importance, winner)


Column = Callable[..., str | None]
"""Function of a row that returns the text of its cell, or None if the row has none."""


def columns_table(
    columns: Mapping[str, Column],
    rows: Iterable[tuple],
    importance: Sequence[str] = (),
    winner: str | None = None,
) -> Table:
    """Makes a table by calling each column, by title, with a row's values; see `table_of`."""
    cells = []
    for row in rows:
        written = {title: write(*row) for title, write in columns.items()}
        cells.append({title: text for title, text in written.items() if text is not None})
    return table_of(cells, list(columns), importance, winner)


def rounds_of(rows: Sequence[Row]) -> str:
    """Lists the rows' rounds: "12, 9"."""
    return ", ".join(str(row["round"]) for row in rows)


def human_flops(count: float) -> str:
    """Formats a count of operations: 1.5e9 is "1.50 GFLOP", NaN is "-"."""
    if math.isnan(count):
        return "-"
    text = human_count(count)
    # "1.50 G" has a prefix, "250" has none.
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"


def human_count(count: float) -> str:
    """Formats a count with a decimal prefix: 1.5e9 is "1.50 G", 250 is "250"."""
    if count < 1000:
        return f"{count:.0f}"
    return _with_prefix(count / 1000, 1000, ("k", "M", "G", "T", "P"))


def human_bytes(count: float) -> str:
    """Formats a number of bytes with a binary prefix: 1536 is "1.50 KiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    return _with_prefix(count / 1024, 1024, ("KiB", "MiB", "GiB"))


def _with_prefix(count: float, base: int, units: Sequence[str]) -> str:
    """Formats a count of the first unit in the largest unit that it reaches."""
    *smaller, largest = units
    for unit in smaller:
        if count < base:
            return f"{count:.2f} {unit}"
        count /= base
    return f"{count:.2f} {largest}"


MARKDOWN_WIDTH = 120
"""Characters per line of a paragraph in Markdown."""


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph of prose, wrapped for the medium."""

    text: str

    def markdown(self) -> str:
        return self.terminal(MARKDOWN_WIDTH)

    def html(self) -> str:
        return f"<p>{html.escape(self.text)}</p>"

    def terminal(self, width: int) -> str:
        return textwrap.fill(self.text, width, break_long_words=False, break_on_hyphens=False)


@dataclasses.dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]

    def markdown(self) -> str:
        return "\n".join(f"* {item}" for item in self.items)

    def html(self) -> str:
        return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in self.items)}</ul>"

    def terminal(self, width: int) -> str:
        del width  # a terminal wraps long items itself, and copies them without line breaks
        return self.markdown()


@dataclasses.dataclass(frozen=True)
class Document:
    """A sequence of blocks.

    Attributes:
      blocks: `Paragraph`, `Bullets`, `Table` or `Document`.
      folded: a title behind which a page hides the blocks; "" to show them, as other media do.
    """

    blocks: "Sequence[Block]" = ()
    folded: str = ""

    def markdown(self) -> str:
        return "\n\n".join(block.markdown() for block in self.blocks)

    def html(self) -> str:
        content = "".join(block.html() for block in self.blocks)
        return folded(self.folded, content) if self.folded else content

    def terminal(self, width: int) -> str:
        return "\n\n".join(block.terminal(width) for block in self.blocks)


Block = Paragraph | Bullets | Document | Table


def folded(title: str, content: str) -> str:
    """Returns HTML that shows `content`, also HTML, on a click on the title."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


WIDE = 540  # points

STYLE = Path(__file__).with_name("page.css")


def page(title: str, headline: str, lead: Sequence[str], sections: Mapping[str, str]) -> str:
    """Returns the HTML of a page; sections without content are omitted.

    Args:
      title: the title of the browser's tab.
      headline: the result in a sentence.
      lead: lines below it: the setting of the run, and its data.
      sections: heading -> content, in HTML.
    """
    shown = []
    for heading, content in sections.items():
        if content:
            shown.append(f"<section><h2>{html.escape(heading)}</h2>{content}</section>")
    head = '<meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>\n{STYLE.read_text()}</style>"
    below = "".join(f"<p>{html.escape(line)}</p>" for line in lead)
    top = f"<header><h1>{html.escape(headline)}</h1>{below}</header>"
    body = f"{top}<main>{''.join(shown)}</main>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def caption(text: str) -> str:
    """Returns a line of small print."""
    return f'<p class="caption">{html.escape(text)}</p>'


def warning_box(lines: Sequence[str]) -> str:
    """Returns a box of warnings; "" without any."""
    if not lines:
        return ""
    return f'<aside class="warning"><h3>To watch</h3>{Bullets(lines).html()}</aside>'


def figure(svg: bytes, name: str, text: str) -> str:
    """Returns a figure with the content of an SVG file and its caption.

    Args:
      svg: the content, embedded as a separate image, so that names within two of them do not
        clash.
      name: alternative text for readers who cannot see it.
      text: the caption.
    """
    shown = image(svg, "svg+xml", name, "drawing")
    width = re.search(rb'<svg [^>]*?width="([\d.]+)pt"', svg)
    # on a small screen it scrolls instead of shrinking its text
    is_wide = width is not None and float(width[1]) > WIDE
    size = ' class="wide"' if is_wide else ""
    below = f"<figcaption>{html.escape(text)}</figcaption>"
    return f'<figure{size}><div class="scroll">{shown}</div>{below}</figure>'


def image(data: bytes, kind: str, description: str, style: str = "") -> str:
    """Returns an image whose data are embedded in the page.

    Args:
      data: the image file.
      kind: the MIME subtype, such as "png".
      description: alternative text for readers who cannot see it.
      style: the CSS class; "" for none.
    """
    encoded = base64.b64encode(data).decode()
    attributes = f'alt="{html.escape(description)}"'
    if style:
        attributes += f' class="{style}"'
    return f'<img {attributes} src="data:image/{kind};base64,{encoded}">'
