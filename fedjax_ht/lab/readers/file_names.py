"""Sets and clients by the names of files and folders, and the images among files."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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


def refuse_set_names(names: Collection[str], what: str, layout: str) -> None:
    """Refuses classes, or domains, that are called like sets, unless it is one of several.

    Args:
      names: names of the classes or domains.
      what: the kind of the names, "classes" or "domains", for the error.
      layout: a layout of folders that is read, or another remedy, for the error.

    Raises:
      ValueError: more than one name is that of a set, or all are.
    """
    alike = sorted(filter(set_of, names))
    if len(alike) > 1 or (alike and len(alike) == len(names)):
        raise ValueError(
            f"its {what} would be {listed(sorted(names))}, of which {listed(alike)} are called "
            f"like sets; sort the folders, {layout}"
        )


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


ENDINGS = (
    *("png", "jpg", "jpeg", "jpe", "jfif", "bmp", "webp", "tif", "tiff", "gif"),
    *("ppm", "pgm", "pbm", "pnm"),
)
"""Endings of the files that are read, in small letters."""

_BESIDE = (
    *("txt", "csv", "tsv", "json", "xml", "yaml", "yml"),
    *("md", "html", "pdf", "db", "ini", "py"),
)
"""Endings of files that stand beside images and say something about them."""


class Files(NamedTuple):
    """The files of a folder, sorted by kind.

    Attributes:
      images: name of each image -> the folders above it.
      left_out: files that are no images, by their ending, and folders without images.
      is_doubtful: True if some of those left out may be samples.
    """

    images: dict[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    is_doubtful: bool


def sorted_out(names: Sequence[str], folders: Sequence[str]) -> Files:
    """Sorts the files of a folder out.

    Args:
      names: relative paths of all files, with "/" between folders.
      folders: relative paths of all folders, with "/" between them.

    Raises:
      ValueError: there are no images.
    """
    images, endings = {}, Counter()
    for name in names:
        *above, file = name.split("/")
        ending = file.rpartition(".")[2].lower() if "." in file else ""
        if ending in ENDINGS:
            images[name] = tuple(above)
        else:
            endings[ending] += 1
    left_out = []
    for ending, count in sorted(endings.items()):
        what = f"file .{ending}" if ending else "file without an ending"
        left_out.append(LeftOut(count, printable(what), "no kind of image that is read"))
    if not images:
        only = f", only {listed(list(map(str, left_out)))}" if left_out else ""
        raise ValueError(f"no images{only}")
    empty = _empty(images, folders)
    is_doubtful = bool(empty) or bool(set(endings) - set(_BESIDE))
    return Files(images, (*left_out, *empty), is_doubtful)


def _empty(images: Mapping[str, tuple[str, ...]], folders: Sequence[str]) -> list[LeftOut]:
    """The topmost folders that have no images, nor in a folder in them."""
    parents = {above[:i] for above in images.values() for i in range(len(above) + 1)}
    empty = []
    for folder in folders:
        above = tuple(folder.split("/"))
        if above not in parents and above[:-1] in parents:
            empty.append(LeftOut(0, printable(f"folder {folder}"), "no images in it"))
    return empty


def left_out_line(files: Files, strays: Sequence[LeftOut] = ()) -> tuple[str, ...]:
    """Returns a line on the files left out, where some of them may be samples."""
    if not files.is_doubtful and not strays:
        return ()
    return (f"left out: {', '.join(map(str, (*files.left_out, *strays)))}",)
