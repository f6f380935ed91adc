"""Reads the cells of tables as text: numbers of features, texts of labels and groups."""

import array
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.annotations import FLOAT
from fedjax_ht.core.names import short
from fedjax_ht.lab.readers.columns import Roles
from fedjax_ht.lab.readers.table_values import PADDED, Texts, append
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import read_whole

_HEADER = 1 << 16  # bytes of it in which separators are counted
FILL = "fill in such values, or leave out the row or the column"
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")


class Rows(NamedTuple):
    """A table as it is read.

    Attributes:
      columns: names of the columns.
      rows: (line, cells) of each row, as many cells as columns.
    """

    columns: tuple[str, ...]
    rows: Iterator[tuple[int, list[str]]]


def rows_of(path: Path) -> Rows:
    """A table's columns and rows; empty lines are passed over.

    Raises:
      ValueError: too large, no header, or a row has more or fewer cells; the latter two as the rows
        are read.
    """
    content = read_whole(path)
    header = bytes(content[:_HEADER]).partition(b"\n")[0]
    separator = max(",;\t", key=lambda mark: header.count(mark.encode()))
    reader = csv.reader(
        io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""),
        delimiter=separator,
        strict=True,
    )
    columns = tuple(name.strip() for name in next(reader, ()))
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"its first line names the columns {short(columns)}; each needs a name of its own"
        )

    def rows():
        count = 0
        for row in reader:
            if len(row) == len(columns):
                count += 1
                limits.keep("the table", count, limits.TABLE_ROWS, "rows")
                limits.keep("the table", count * len(row), limits.TABLE_CELLS, "cells")
                yield reader.line_num, row
            elif row:
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} cells for {len(columns)} columns"
                )

    return Rows(columns, rows())


class Values(NamedTuple):
    """The values of a table.

    Attributes:
      inputs: float64 [N, features], all of which float32 has.
      labels, groups: the texts of these columns; of groups none where there is no such column.
      counts: rows of each file.
      padded: name of each feature with digits behind zeros -> one of its cells.
    """

    inputs: np.ndarray
    labels: Texts
    groups: Texts
    counts: list[int]
    padded: dict[str, str]


def read_values(roles: Roles, files: Sequence[Path], tables: Sequence[Rows]) -> Values:
    """Reads the rows of all files.

    Args:
      roles: roles of the columns.
      files: paths of the tables, for the messages.
      tables: the tables of the files, with the columns of `roles`, in any order.

    Raises:
      ValueError: a value is missing, no number or beyond float32, or a file has no rows. One line.
    """
    # arrays of numbers, since lists would take four times their memory
    values, lines, counts, padded = array.array("d"), array.array("q"), [], {}
    labels, groups = Texts({}, array.array("i")), Texts({}, array.array("i"))
    for file, table in zip(files, tables):
        where = _where(file, files)
        positions = dict(zip(table.columns, range(len(table.columns))))
        places = [positions[name] for name in roles.features]
        special = [(roles.label, positions[roles.label], labels)]
        if roles.group:
            special.append((roles.group, positions[roles.group], groups))
        start = len(lines)
        for line, row in table.rows:
            for name, position, column in special:
                cell = row[position].strip()
                if not cell:
                    raise ValueError(f"{where}line {line} has no value in column {name!r}")
                append(column, cell)
            cells = [row[i] for i in places]
            text = ",".join(cells)
            values.extend(_numbers(f"{where}line {line}", roles.features, cells, text=text))
            if PADDED.search(text):
                padded |= {name: x for name, x in zip(roles.features, cells) if PADDED.search(x)}
            lines.append(line)
        if len(lines) == start:
            raise ValueError(f"{where}it has no rows")
        counts.append(len(lines) - start)
        limits.keep("the table", len(lines), limits.TABLE_ROWS, "rows")
        limits.keep("the table", len(values), limits.TABLE_CELLS, "cells")
    inputs = np.frombuffer(values, np.float64).reshape(len(lines), -1)

    def place(row: int) -> str:
        file = files[int(np.searchsorted(np.cumsum(counts), row, "right"))]
        return f"{_where(file, files)}line {lines[row]}"

    refuse_gaps(inputs, roles.features, place)
    return Values(inputs=inputs, labels=labels, groups=groups, counts=counts, padded=padded)


def refuse_gaps(inputs: np.ndarray, columns: Sequence[str], place: Callable[[int], str]) -> None:
    """Refuses rows with a value that is NaN, infinite or beyond float32.

    Args:
      inputs: float64 [N, columns].
      columns: names of the columns.
      place: the place of a row by its number, for the message.

    Raises:
      ValueError: there is such a row. One line.
    """
    bad = np.argwhere(~(np.abs(inputs) <= FLOAT))
    if len(bad):
        row, column = bad[0].tolist()
        raise ValueError(
            f"{place(row)} has {inputs[row, column]:g} in column {columns[column]!r}; {FILL}"
        )


def _where(file: Path, files: Sequence[Path]) -> str:
    """The beginning of a place in one of several files."""
    return "" if len(files) == 1 else f"{file.name}, "


def _numbers(place: str, columns: Sequence[str], cells: Sequence[str], *, text: str) -> list[float]:
    """The numbers of a row, whose cells are joined in `text`.

    Raises:
      ValueError: a cell is no number. The line names it.
    """
    # Python reads 1_000 and digits of every script as numbers, which no other program writes
    if "_" not in text and text.isascii():
        try:
            return list(map(float, cells))
        except ValueError:
            pass
    raise ValueError(_no_number(place, columns, cells))


def _no_number(place: str, columns: Sequence[str], cells: Sequence[str]) -> str:
    """The message of the first cell that is no number."""
    for name, cell in zip(columns, cells):
        try:
            float(cell)
        except ValueError:
            if cell.strip().lower() in _MISSING:
                return f"{place} has no value in column {name!r}; {FILL}"
        else:
            if "_" not in cell and cell.isascii():
                continue
        return (
            f"column {name!r} holds text, {short(cell)} in {place}; make it numbers, or "
            "leave the column out"
        )
    raise AssertionError("each is a number")
