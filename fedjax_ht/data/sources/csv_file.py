"""Tables as text: .csv files of anyone, with a header line."""

import array
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.names import unknown
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import Origin, reading, user_path
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.as_stored import refuse_image_size, to_groups
from fedjax_ht.data.sources.source import Source

LABELS, GROUPS = ("label", "target", "class", "y"), ("group", "person")
"""Names of columns, in small letters, that are the label or the group if none is named."""

_HEADER = 1 << 16  # bytes of it in which separators are counted
_ORIGIN = Origin(
    "a header line, a column of labels, and columns of numbers, separated by commas, semicolons or "
    "tabs",
    "name the columns as csv:PATH:LABEL or csv:PATH:LABEL:GROUP if they are not called label and "
    "group",
)


class Rows(NamedTuple):
    """A table as it is read.

    Attributes:
      columns: their names.
      rows: (line, cells) of each row, as many cells as columns.
    """

    columns: tuple[str, ...]
    rows: Iterator[tuple[int, list[str]]]


def read_csv(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH relative to `data_dir` if that is given.

    The file is .csv or .csv.gz. LABEL is the column of the labels, GROUP that of whose a sample is
    (`Dataset.groups`); by default those called as `LABELS` and `GROUPS` say, of a group there need
    be none. All other columns are the samples, float32 [N, columns] as stored. Classes are named by
    the labels, in sorted order, by value if all are whole numbers; so are groups, which keep their
    numbers if they have some.

    Raises:
      ValueError: there is no such column, a value is missing, or a column holds text. The line says
        which.
    """
    file, *named = path.split(":")
    file = user_path(file, data_dir)
    with reading(file, _ORIGIN):
        refuse_image_size(image_size)
        if len(named) > 2:
            raise ValueError(
                f"{len(named)} columns are named, {', '.join(named)}; name a label and a group at "
                "most, as csv:PATH:LABEL:GROUP"
            )
        columns, rows = rows_of(file)
        label, group = (*named, "", "")[:2]
        label = _column("label", label, columns, LABELS)
        if group or _called(columns, GROUPS):
            group = _column("group", group, columns, GROUPS)
        if label == group:
            raise ValueError(f"column {label!r} is named twice")
        special = [label, group] if group else [label]
        inputs, (labels, *owners) = _values(columns, rows, special)
        numbers, names = _numbered(label, labels)
        groups = _groups(group, owners[0]) if owners else None
        return Dataset(f"csv:{path}", inputs, numbers, tuple(map(str, names)), groups=groups)


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
            f"its first line names the columns {limits.short(columns)}; each needs a name of its "
            "own"
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


def _called(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of such a name, the first names first."""
    called = []
    for name in names:
        called += [column for column in columns if column.lower() == name]
    return called


def _column(role: str, named: str, columns: Sequence[str], default: Sequence[str]) -> str:
    """The column of the labels or groups: the one that is named, or has a default name."""
    ending = ", ..." if len(columns) > 20 else ""
    known = f"the columns are {', '.join(columns[:20])}{ending}"
    if named and named not in columns:
        raise ValueError(unknown("column", named, columns, known))
    candidates = [named] if named else _called(columns, default)
    if not candidates:
        raise ValueError(
            f"no column is called {', '.join(default)}; name the {role} as csv:PATH:LABEL; {known}"
        )
    return candidates[0]


class _Texts(NamedTuple):
    """A column of texts, many of them the same.

    Attributes:
      codes: text -> its number in the order of coming.
      places: number of each row's text.
    """

    codes: dict[str, int]
    places: array.array


def _values(
    columns: Sequence[str], rows: Iterator, special: Sequence[str]
) -> tuple[np.ndarray, list[_Texts]]:
    """float32 [N, all columns but the special ones], and the texts of each special column."""
    places = [columns.index(name) for name in special]
    plain = [name for name in columns if name not in special]
    if not plain:
        raise ValueError(f"it has no column of numbers beside {' and '.join(special)}")
    # arrays of numbers, since lists would take eight times their memory
    values, lines = array.array("f"), array.array("q")
    texts = [_Texts({}, array.array("i")) for _ in special]
    for line, row in rows:
        for column, name, place in zip(texts, special, places):
            cell = row[place].strip()
            if not cell:
                raise ValueError(f"line {line} has no value in column {name!r}")
            _append(column, cell)
        for place in sorted(places, reverse=True):
            del row[place]
        try:
            values.extend(map(float, row))
        except ValueError:
            raise ValueError(_no_number(line, plain, row)) from None
        lines.append(line)
    if not lines:
        raise ValueError("it has no rows")
    inputs = np.frombuffer(values, np.float32).reshape(len(lines), -1)
    if len(bad := np.argwhere(~np.isfinite(inputs))):
        row, column = bad[0]
        raise ValueError(
            f"line {lines[row]} has {inputs[row, column]} in column {plain[column]!r}; {_FILL}"
        )
    return inputs, texts


_FILL = "fill in such values, or leave out the row or the column"
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")


def _no_number(line: int, columns: Sequence[str], row: Sequence[str]) -> str:
    """The message of the first cell that is no number."""
    for name, cell in zip(columns, row):
        try:
            float(cell)
        except ValueError:
            if cell.strip().lower() in _MISSING:
                return f"line {line} has no value in column {name!r}; {_FILL}"
            return (
                f"column {name!r} holds text, {limits.short(cell)} in line {line}; make it "
                "numbers, or leave the column out"
            )
    raise AssertionError("each is a number")


def _groups(name: str, column: _Texts) -> np.ndarray:
    """The group of each row: numbers as they are, texts by their places."""
    places, values = _numbered(name, column)
    if isinstance(values[0], int):
        places = np.array(values)[places]
    return to_groups(name, places)


def _append(column: _Texts, text: str) -> None:
    column.places.append(column.codes.setdefault(text, len(column.codes)))
    limits.keep("a column", len(column.codes), limits.CLASSES, "classes or groups")


def _numbered(name: str, column: _Texts) -> tuple[np.ndarray, list]:
    """Each row's place among the values of a column, int [N], and the values in order.

    Values are whole numbers if all are, else texts.
    """
    texts = list(column.codes)
    values = _whole(name, texts) or texts
    ordered = sorted(set(values))
    place = dict(zip(ordered, range(len(ordered))))
    places = np.array([place[value] for value in values])
    # of each different text, and by `column.places` of each row
    return places[np.frombuffer(column.places, np.int32)], ordered


def _whole(name: str, texts: Sequence[str]) -> list[int] | None:
    """The whole numbers that texts are, such as "3" or "3.0"; None if some text is none."""
    try:
        return [int(text) for text in texts]
    except ValueError:
        pass
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    for number in numbers:
        if not number.is_integer():
            raise ValueError(
                f"column {name!r} has {number}; classes and groups are whole numbers or texts"
            )
    return [int(number) for number in numbers]


CSV = Source(
    name="csv",
    argument="PATH",
    about="it is a table of your own, and nothing is to be downloaded",
    read=read_csv,
)
