"""The text of CSV files that a spreadsheet shows and does not compute."""

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of what spreadsheets take for a formula; white space before one is skipped."""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Returns rows as CSV, with the line ends of RFC 4180.

    A text that a spreadsheet would compute stands behind a quote; a number stays a number. Names of
    columns and entries may come from elsewhere, such as another's run or a deployment's client.

        >>> csv_text([["=1+1", "-1.5", -1.5, "-"]])
        "'=1+1,-1.5,-1.5,-\r\n"
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows([map(_shown, row) for row in rows])
    return text.getvalue()


def _shown(cell: Any) -> Any:
    if not isinstance(cell, str) or len(cell) < 2 or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
