"""Texts of paragraphs, lists and tables, which are written as Markdown, HTML or for a terminal."""

import dataclasses
import html
import textwrap
from collections.abc import Sequence

from fedjax_ht.lab.report.table import Table

MARKDOWN_WIDTH = 120
"""Characters of a line of a paragraph in Markdown."""


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph of prose; its line breaks are those of the medium."""

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
        del width  # a terminal wraps long items, and copies them whole
        return self.markdown()


@dataclasses.dataclass(frozen=True)
class Document:
    """A sequence of blocks.

    Attributes:
      blocks: `Paragraph`, `Bullets`, `Folded`, `Table` or `Document`.
    """

    blocks: "Sequence[Block]" = ()

    def markdown(self) -> str:
        return "\n\n".join(block.markdown() for block in self.blocks)

    def html(self) -> str:
        return "".join(block.html() for block in self.blocks)

    def terminal(self, width: int) -> str:
        return "\n\n".join(block.terminal(width) for block in self.blocks)


@dataclasses.dataclass(frozen=True)
class Folded:
    """Blocks that a page hides behind a title; elsewhere they stand there without it."""

    title: str
    blocks: "Sequence[Block]"

    def markdown(self) -> str:
        return Document(self.blocks).markdown()

    def html(self) -> str:
        return folded(self.title, Document(self.blocks).html())

    def terminal(self, width: int) -> str:
        return Document(self.blocks).terminal(width)


Block = Paragraph | Bullets | Folded | Document | Table


def folded(title: str, content: str) -> str:
    """Returns HTML that shows `content`, HTML itself, at a click on the title."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"
