"""Tables as text: .csv files of anyone, with a header line, one file or one a client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.core.names import listed
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.as_stored import refuse_image_size
from fedjax_ht.lab.readers.columns import (
    NOT_NAMED,
    Columns,
    named_in,
    refuse_two_owners,
    roles_of,
)
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_cells import read_values, rows_of
from fedjax_ht.lab.readers.table_files import Owners, owners_of, table_files, table_place
from fedjax_ht.lab.readers.table_set import numbers_set
from fedjax_ht.lab.readers.table_values import Texts, group_numbers, numbered
from fedjax_ht.lab.safe.archive import Origin, reading

_ORIGIN = Origin(
    "a header line, a column of labels, and columns of numbers, separated by commas, semicolons or "
    "tabs",
    "name the columns as csv:PATH:LABEL or csv:PATH:LABEL:GROUP if they are not called label and "
    "group",
)


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
        values = read_values(roles, files, tables)
        labels, class_names = numbered(roles.label, values.labels)
        warnings: tuple[str, ...] = ()
        for name, cell in values.padded.items():
            warnings += (f"feature {name!r} has digits behind zeros, {cell}, read as numbers",)
        owners = owners_of(files, values.counts)
        groups, group_names = _groups(roles.group, values.groups, owners)
        return numbers_set(
            f"csv:{path}",
            roles,
            inputs=values.inputs,
            labels=labels,
            class_names=tuple(map(str, class_names)),
            counts=values.counts,
            official=owners.official,
            groups=groups,
            reading=Reading(
                path=str(place),
                group_names=group_names,
                left_out=left_out,
                warnings=warnings + left_out_line,
            ),
        )


def _refuse_other_columns(
    file: Path, columns: Sequence[str], first: Path, of_first: Sequence[str]
) -> None:
    """Refuses a file of a folder whose columns are not those of the first file."""
    if set(columns) != set(of_first):
        different = sorted(set(columns) ^ set(of_first))
        raise ValueError(
            f"{file.name} has other columns than {first.name}: only one of them has "
            f"{listed(different)}; all files of a folder need the same"
        )


def _groups(name: str, column: Texts, owners: Owners) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The group of each row, and the names of groups that are no numbers."""
    if owners.groups is not None:
        refuse_two_owners(name)
        return owners.groups, owners.names
    if not name:
        return None, ()
    return group_numbers(name, column)


CSV = Source(
    name="csv",
    argument="PATH",
    about="it is a table of your own, or a folder of them, and nothing is to be downloaded",
    read=read_csv,
    place=table_place,
    columns=True,
)
