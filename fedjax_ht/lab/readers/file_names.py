"""Sets and clients by the names of files and folders, and the images among files."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.source import one_after_another
from fedjax_ht.lab.safe.bounded import printable

_SET_NAME = re.compile(
    r"(?:seg|imgs?|images?|data|dataset)?[ _.-]*"
    r"(?:(?P<train>train(?:ing)?)|(?P<test>tests?|testing)"
    r"|(?P<val>val(?:id(?:ate|ation)?)?|dev|eval(?:uation)?))"
    r"[ _.-]*(?:sets?|imgs?|images?|data|dataset|split|folder)?[ _.-]*\d*",
    re.IGNORECASE,
)


def set_of(name: str) -> str:
    """Returns "train", "val" or "test" for a usual name of such a set, else "".

    Examples:
      >>> set_of("Training"), set_of("seg_test"), set_of("valid"), set_of("dev"), set_of("trains")
      ('train', 'test', 'val', 'val', '')
    """
    match = _SET_NAME.fullmatch(name)
    return match.lastgroup or "" if match else ""


def sets_of(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> set of the names that are called like one.

    Raises:
      ValueError: two names are called like the same set.
    """
    sets: dict[str, str] = {}
    for name in sorted(names):
        of_name = set_of(name)
        if of_name in sets.values():
            other = next(key for key, value in sets.items() if value == of_name)
            raise ValueError(
                f"{other} and {name} are both called like a set to {_PURPOSE[of_name]}; put them "
                "together, or give one of them another name"
            )
        if of_name:
            sets[name] = of_name
    return sets


SETS = ("train", "val", "test")
_PURPOSE = {"train": "train on", "val": "validate on", "test": "test on"}


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


def files_of(place: Path, endings: Sequence[str]) -> tuple[list[Path], tuple[LeftOut, ...]]:
    """Returns the file itself, or the files of a folder by name, and the folder's other entries.

    Raises:
      ValueError: the folder has no file with such an ending.
    """
    if not place.is_dir():
        return [place], ()
    files, left_out = [], []
    for path in sorted(place.iterdir()):
        if path.name.startswith("."):
            continue
        if path.name.lower().endswith(tuple(endings)) and not path.is_dir():
            files.append(path)
        else:
            left_out.append(LeftOut(0, printable(path.name), f"no {endings[0]} file"))
    if not files:
        raise ValueError(f"no {', '.join(endings)} file in the folder")
    return files, tuple(left_out)


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
    alike = [name for name in names if set_of(name)]
    if alike and len(alike) < len(names):
        clients = [name for name in names if not set_of(name)]
        raise ValueError(
            f"{listed(alike)} are called like sets, and {listed(clients)} are not; a folder has a "
            "file for each client, or one for each of the sets train, val and test"
        )
    if not alike:
        return Owners(np.repeat(np.arange(len(files), dtype=np.int32), counts), names, {})
    sets = sets_of(names)
    official = one_after_another((sets[name], count) for name, count in zip(names, counts))
    return Owners(None, (), official)
