"""Texts in CSV files of anyone, with or without a head, one file or one a client."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.columns import (
    NOT_NAMED,
    Columns,
    Roles,
    label_candidates,
    named_in,
    refuse_two_owners,
    roles_of,
)
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_files import Owners, owners_of, table_files, table_place
from fedjax_ht.lab.readers.table_set import texts_set
from fedjax_ht.lab.readers.table_values import class_order
from fedjax_ht.lab.readers.tokens import TextForm, text_rows
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, reading
from fedjax_ht.lab.safe.bounded import read_whole

_ORIGIN = Origin(
    "a CSV file in UTF-8, rows of a class and one or more columns of text, or a head that names "
    "the columns",
    "name the label as text:PATH:LABEL if it is not called label",
)
_TEXTS = (
    "text",
    "texts",
    "title",
    "description",
    "sentence",
    "review",
    "content",
    "body",
    "message",
)
"""Names of columns, in small letters, that show that a line is a head."""


def read_text(
    path: str, data_dir: Path | None, form: TextForm, columns: Columns = NOT_NAMED
) -> Dataset:
    """Reads PATH, PATH:LABEL or PATH:LABEL:GROUP, PATH one of the current folder or `data_dir`.

    It is a .csv, or a .tsv, or a folder of them: one a client, whose samples are a group, or, where
    all are called like sets, the official sets. In a file with a head the columns have the roles
    that `columns.roles_of` finds; in one without, the class is the first column and the text is in
    those behind it. Classes are in the order of their numbers, or of their names. The vocabulary is
    that of all texts, or of the training set where files are sets.

    Raises:
      ValueError: the columns cannot be what they are taken for, or the file is damaged. One line.
    """
    place = table_place(path, data_dir)
    with reading(place, _ORIGIN):
        named = named_in(path, columns)
        files, left_out, left_out_line = table_files(place)
        table = _joined(files, named, f"text:{path.partition(':')[0]}")
        names = class_order(table.classes)
        number = dict(zip(names, range(len(names))))
        labels = np.array([number[name] for name in table.classes], np.int32)
        roles = table.roles
        _refuse_head(roles, labels, names)
        owners = owners_of(files, table.counts)
        groups, group_names = _groups(table, owners)
        return texts_set(
            f"text:{path}",
            roles,
            cells=table.cells,
            labels=labels,
            class_names=names,
            form=form,
            official=owners.official,
            groups=groups,
            reading=Reading(
                path=str(place),
                group_names=group_names,
                left_out=left_out,
                warnings=left_out_line,
            ),
        )


class _Table(NamedTuple):
    """The rows of all files.

    Attributes:
      classes: the text of each row's class.
      owners: the text of each row's group; empty where there is no such column.
      cells: the texts of each row's other columns.
      counts: numbers of rows, one a file.
      roles: roles of the columns; without a head they have no names.
    """

    classes: list[str]
    owners: list[str]
    cells: list[list[str]]
    counts: list[int]
    roles: Roles


_HEADLESS = Roles(label="", features=(), group="", are_named=False, sentence="")


def _joined(files: Sequence[Path], named: Columns, name: str) -> _Table:
    """Reads the rows of all files, each with a head or without."""
    table = _Table([], [], [], [], _HEADLESS)
    for file in files:
        try:
            table = _with_file(table, file, named, name=name)
        except ValueError as error:
            if len(files) == 1:
                raise
            raise ValueError(f"{file.name}: {error}") from error
    if len({len(cells) for cells in table.cells}) > 1:
        raise ValueError("its files have several numbers of columns; all of a folder need the same")
    return table


def _with_file(table: _Table, file: Path, named: Columns, *, name: str) -> _Table:
    """Adds the rows of a file; `name` is the set's, for the messages."""
    content = read_whole(file, limits.TEXTS_BYTES)
    mark = "\t" if ".tsv" in file.suffixes else ","
    head = _head(text_rows(content, mark), named)
    rows, roles = text_rows(content, mark), _HEADLESS
    if head:
        next(rows)
        roles = roles_of(head, named, name)
    for line, row in rows:
        label, owner, cells = _parts(row, head, roles)
        if not label.strip():
            raise ValueError(f"line {line} has no class")
        table.classes.append(label.strip())
        table.cells.append(cells)
        if roles.group:
            table.owners.append(owner.strip())
        limits.keep("the set", len(table.cells), limits.TEXTS, "texts")
    table.counts.append(len(table.cells) - sum(table.counts))
    if not table.counts[-1]:
        raise ValueError("it has no rows")
    return table._replace(roles=roles)


def _parts(row: list[str], head: list[str], roles: Roles) -> tuple[str, str, list[str]]:
    """The class, the group and the texts of a row."""
    if not head:
        return row[0], "", row[1:]
    by_name = dict(zip(head, row))
    owner = by_name[roles.group] if roles.group else ""
    return by_name[roles.label], owner, [by_name[name] for name in roles.features]


def _head(rows: Iterator[tuple[int, list[str]]], named: Columns) -> list[str]:
    """The names of the columns if the first row has them, else [].

    It has them if a column is named that it holds, or if it holds a usual name of labels or texts
    and that text occurs in its column no second time.
    """
    first = [cell.strip() for cell in next(rows, (0, []))[1]]
    if any(named):
        return first
    usual = {*map(str.lower, label_candidates(first)), *_TEXTS}
    places = [i for i, cell in enumerate(first) if cell.lower() in usual]
    if not places:
        return []
    for _, row in rows:
        if any(row[i].strip() == first[i] for i in places):
            return []
    return first


def _refuse_head(roles: Roles, labels: np.ndarray, names: Sequence[str]) -> None:
    """Refuses a file whose first line is the only one of its class: it may be a head.

    Raises:
      ValueError: it is, and every other class has several.
    """
    counts = np.bincount(labels, minlength=len(names))
    if roles.label or len(labels) < 4 or np.count_nonzero(counts == 1) != 1:
        return
    if counts[labels[0]] == 1:
        raise ValueError(
            f"class {names[labels[0]]!r} has one sample, in line 1, which looks like a head; name "
            "the column of the labels, as text:PATH:LABEL, or leave that line out"
        )


def _groups(table: _Table, owners: Owners) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The group of each row, by file or column, and the groups' names."""
    if owners.groups is not None:
        refuse_two_owners(table.roles.group)
        return owners.groups, owners.names
    if not table.owners:
        return None, ()
    names = class_order(table.owners)
    number = dict(zip(names, range(len(names))))
    return np.array([number[name] for name in table.owners], np.int32), names


TEXT = Source(
    name="text",
    argument="PATH",
    about="it is a file of your own, or a folder of them, and nothing is to be downloaded",
    read=read_text,
    place=table_place,
    texts=True,
    columns=True,
)
