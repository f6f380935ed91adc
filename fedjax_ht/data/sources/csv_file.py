"""Tables as text: .csv files of anyone, with a header line, one file or one a client."""

import array
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.conversion import as_groups, refuse_merged
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import Origin, reading
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.reading import Reading
from fedjax_ht.data.sources.as_stored import refuse_image_size
from fedjax_ht.data.sources.columns import (
    NOT_NAMED,
    Columns,
    Roles,
    named_in,
    refuse_two_owners,
    roles_of,
)
from fedjax_ht.data.sources.source import Source
from fedjax_ht.data.sources.table_checks import class_lines, refuse_giveaways
from fedjax_ht.data.sources.table_files import Owners, owners_of, table_files, table_place
from fedjax_ht.data.sources.table_values import PADDED, Texts, append, numbered

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


def read_csv(
    path: str, data_dir: Path | None, image_size: int | None, columns: Columns = NOT_NAMED
) -> Dataset:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH one of the current folder or `data_dir`.

    It is a .csv or .csv.gz, or a folder of them with the same columns: one a client, whose samples
    are a group, or, where all are called like sets (train.csv, test.csv), the official sets. LABEL
    is the column of the labels, GROUP that of whose a sample is (`Dataset.groups`); by default
    those called as `columns.LABELS` and `columns.GROUPS` say, of a group there need be none. All
    other columns are the samples, float32 as stored, and a model sees them standardised by the
    training samples. Classes are named by the labels, in sorted order, by value if all are whole
    numbers without leading zeros; so are groups, which keep their numbers if they have some.

    Raises:
      ValueError: there is no such column, a value is missing, a column holds text, or a column is
        plausibly not what it is taken for. The line says which.
    """
    place = table_place(path, data_dir)
    with reading(place, _ORIGIN):
        named = named_in(path, columns)
        refuse_image_size(image_size)
        files, left_out, left_out_line = table_files(place)
        tables = [rows_of(file) for file in files]
        for file, table in zip(files, tables):
            _refuse_other_columns(file, table.columns, files[0], tables[0].columns)
        roles = roles_of(tables[0].columns, named, f"csv:{path.partition(':')[0]}")
        values = _values(roles, files, tables)
        labels, class_names = numbered(roles.label, values.labels)
        names = tuple(map(str, class_names))
        warnings = refuse_giveaways(roles, values.inputs, labels)
        warnings += class_lines(f"column {roles.label!r}", labels, names)
        for name, cell in values.padded.items():
            warnings += (f"feature {name!r} has digits behind zeros, {cell}, read as numbers",)
        if roles.sentence:
            warnings = (roles.sentence, *warnings)
        warnings += left_out_line
        owners = owners_of(files, values.counts)
        groups, group_names = _groups(roles.group, values.groups, owners)
        refuse_merged("the table", values.inputs, roles.features)
        return Dataset(
            f"csv:{path}",
            values.inputs.astype(np.float32),
            labels,
            names,
            preprocess=Standardised(),
            official=owners.official,
            groups=groups,
            reading=Reading(
                path=str(place),
                label=roles.label,
                features=roles.features,
                group_names=group_names,
                left_out=left_out,
                warnings=warnings,
            ),
        )


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


def _refuse_other_columns(
    file: Path, columns: Sequence[str], first: Path, of_first: Sequence[str]
) -> None:
    """Refuses a file of a folder whose columns are not those of the first file."""
    if set(columns) != set(of_first):
        different = sorted(set(columns) ^ set(of_first))
        raise ValueError(
            f"{file.name} has other columns than {first.name}: only one of them has "
            f"{limits.listed(different)}; all files of a folder need the same"
        )


class _Values(NamedTuple):
    """The values of a table.

    Attributes:
      inputs: float64 [N, features].
      labels, groups: the texts of these columns; of groups none where there is no such column.
      counts: rows of each file.
      padded: name of each feature with digits behind zeros -> one of its cells.
    """

    inputs: np.ndarray
    labels: Texts
    groups: Texts
    counts: list[int]
    padded: dict[str, str]


def _values(roles: Roles, files: Sequence[Path], tables: Sequence[Rows]) -> _Values:
    """Reads the rows of all files."""
    # arrays of numbers, since lists would take four times their memory
    values, counts, padded = array.array("d"), [], {}
    labels, groups = Texts({}, array.array("i")), Texts({}, array.array("i"))
    for file, table in zip(files, tables):
        where = "" if len(files) == 1 else f"{file.name}, "
        positions = dict(zip(table.columns, range(len(table.columns))))
        places = [positions[name] for name in roles.features]
        special = [(roles.label, positions[roles.label], labels)]
        if roles.group:
            special.append((roles.group, positions[roles.group], groups))
        count = 0
        for line, row in table.rows:
            for name, position, column in special:
                cell = row[position].strip()
                if not cell:
                    raise ValueError(f"{where}line {line} has no value in column {name!r}")
                append(column, cell)
            cells = [row[i] for i in places]
            values.extend(_numbers(f"{where}line {line}", roles.features, cells))
            if PADDED.search(",".join(cells)):
                padded |= {name: x for name, x in zip(roles.features, cells) if PADDED.search(x)}
            count += 1
        if not count:
            raise ValueError(f"{where}it has no rows".removeprefix(", "))
        counts.append(count)
        limits.keep("the table", sum(counts), limits.TABLE_ROWS, "rows")
        limits.keep("the table", len(values), limits.TABLE_CELLS, "cells")
    inputs = np.frombuffer(values, np.float64).reshape(sum(counts), -1)
    return _Values(inputs=inputs, labels=labels, groups=groups, counts=counts, padded=padded)


_FILL = "fill in such values, or leave out the row or the column"
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")
_LARGEST = float(np.finfo(np.float32).max)


def _numbers(place: str, columns: Sequence[str], row: Sequence[str]) -> list[float]:
    """The numbers of a row, all of which float32 has.

    Raises:
      ValueError: a cell is no number. The line names it.
    """
    text = "".join(row)
    try:
        # Python reads 1_000 and digits of every script as numbers, which no other program writes
        if "_" in text or not text.isascii():
            raise ValueError(text)
        numbers = list(map(float, row))
    except ValueError:
        raise ValueError(_no_number(place, columns, row)) from None
    for name, number in zip(columns, numbers):
        if not -_LARGEST <= number <= _LARGEST:
            shown = "inf" if number > 0 else "-inf"
            shown = "nan" if number != number else shown
            raise ValueError(f"{place} has {shown} in column {name!r}; {_FILL}")
    return numbers


def _no_number(place: str, columns: Sequence[str], row: Sequence[str]) -> str:
    """The message of the first cell that is no number."""
    for name, cell in zip(columns, row):
        try:
            float(cell)
        except ValueError:
            if cell.strip().lower() in _MISSING:
                return f"{place} has no value in column {name!r}; {_FILL}"
        else:
            if "_" not in cell and cell.isascii():
                continue
        return (
            f"column {name!r} holds text, {limits.short(cell)} in {place}; make it numbers, or "
            "leave the column out"
        )
    raise AssertionError("each is a number")


def _groups(name: str, column: Texts, owners: Owners) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The group of each row, and the names of groups that are no numbers."""
    if owners.groups is not None:
        refuse_two_owners(name)
        return owners.groups, owners.names
    if not name:
        return None, ()
    places, values = numbered(name, column)
    if isinstance(values[0], int):
        return as_groups(name, np.array(values)[places]), ()
    return as_groups(name, places), tuple(map(str, values))


CSV = Source(
    name="csv",
    argument="PATH",
    about="it is a table of your own, or a folder of them, and nothing is to be downloaded",
    read=read_csv,
    place=table_place,
    columns=True,
)
