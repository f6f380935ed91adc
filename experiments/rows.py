"""Rows of results: columns, groups, and CSV files."""

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Table

T = TypeVar("T")
R = TypeVar("R", bound=tuple)  # a NamedTuple


def write_rows(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows below a header, atomically; floats have six significant digits."""
    write_whole(path, Table(head, [list(map(cell, row)) for row in rows]).csv())


def read_lines(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a CSV file, as column -> text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Reads the rows of a NamedTuple that `write_rows` wrote.

    Raises:
      ValueError: it is another file. One line.
    """
    rows = read_lines(path)
    if not rows or tuple(rows[0]) != kind._fields:
        raise ValueError(f"{path} must have rows with the columns {', '.join(kind._fields)}")
    kinds = kind.__annotations__
    return [kind(**{name: _value(kinds[name], text) for name, text in row.items()}) for row in rows]


def _value(kind: Any, text: str) -> Any:
    if kind == float | str:  # a number, or "" for none
        return float(text) if text else ""
    return kind(text)


def cell(value: Any) -> str:
    """Formats a value for a CSV file."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def column(rows: Iterable[Any], name: str) -> list[Any]:
    """Returns one field of each row."""
    return [getattr(row, name) for row in rows]


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Groups items by a key, in order."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def late_mean(history: Mapping[int, float]) -> float:
    """Returns the mean over evaluations in the last third of the rounds, given round -> score."""
    last = max(history)
    return statistics.mean(value for number, value in history.items() if 3 * number > 2 * last)
