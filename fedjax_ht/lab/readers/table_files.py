"""One file of a table or of texts, or a folder of them: a file a client, or a file a set."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.names import listed
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.split_names import set_of, sets_of
from fedjax_ht.lab.safe.archive import printable, user_path

_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


class Owners(NamedTuple):
    """The clients, or the sets, that the rows of several files are of.

    Attributes:
      groups: int32 [N], the number of the file of each row; None for one file, or sets.
      names: names of the files, without their endings; () for one file, or sets.
      official: name of a set -> indices of its rows.
    """

    groups: np.ndarray | None
    names: tuple[str, ...]
    official: dict[str, np.ndarray]


def table_place(text: str, data_dir: Path | None) -> Path:
    """The file or folder in PATH, PATH:LABEL or PATH:LABEL:GROUP."""
    return user_path(text.partition(":")[0], data_dir)


class TableFiles(NamedTuple):
    """The tables of a path.

    Attributes:
      files: the file itself, or those of a folder by name.
      left_out: entries of the folder that are no tables.
      warnings: a line on the entries left out, or none.
    """

    files: list[Path]
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()


def table_files(place: Path) -> TableFiles:
    """Finds the file, or the tables of a folder.

    Raises:
      ValueError: the folder has none.
    """
    if not place.is_dir():
        return TableFiles([place])
    files, left_out = [], []
    for path in sorted(place.iterdir()):
        if path.name.startswith("."):
            continue
        is_table = path.name.lower().endswith(_ENDINGS) and not path.is_dir()
        if is_table:
            files.append(path)
        else:
            left_out.append(LeftOut(0, printable(path.name), "no table"))
    if not files:
        raise ValueError(f"no {', '.join(_ENDINGS)} file in the folder")
    if not left_out:
        return TableFiles(files)
    line = f"left out: {listed(list(map(str, left_out)))}"
    return TableFiles(files, tuple(left_out), (line,))


def owners_of(files: Sequence[Path], counts: Sequence[int]) -> Owners:
    """Finds the clients, or the sets, that the rows of files belong to.

    Args:
      files: paths of the files, in order.
      counts: numbers of rows, one a file.

    Raises:
      ValueError: some are called like sets, train or test, and others are not.
    """
    if len(files) == 1:
        return Owners(None, (), {})
    names = tuple(printable(path.name.partition(".")[0]) for path in files)
    ends = np.cumsum([0, *counts])
    alike = [name for name in names if set_of(name)]
    if alike and len(alike) < len(names):
        clients = [name for name in names if not set_of(name)]
        raise ValueError(
            f"{listed(alike)} are called like sets, and {listed(clients)} are not; a folder has a "
            "file for each client, or one for each of the sets train, val and test"
        )
    if not alike:
        return Owners(np.repeat(np.arange(len(files), dtype=np.int32), counts), names, {})
    official, sets = {}, sets_of(names)
    for name, start, end in zip(names, ends, ends[1:]):
        official[sets[name]] = np.arange(start, end)
    return Owners(None, (), official)
