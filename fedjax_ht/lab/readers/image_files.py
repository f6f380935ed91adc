"""Sorts the files of a folder into images, which are read, and others, which are left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.safe.archive import printable

ENDINGS = (
    *("png", "jpg", "jpeg", "jpe", "jfif", "bmp", "webp", "tif", "tiff", "gif"),
    *("ppm", "pgm", "pbm", "pnm"),
)
"""Endings of the files that are read, in small letters."""

_ABOUT = ("txt", "csv", "tsv", "json", "xml", "yaml", "yml", "md", "html", "pdf", "db", "ini", "py")
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
    is_doubtful = bool(empty) or bool(set(endings) - set(_ABOUT))
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
