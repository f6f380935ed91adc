"""Any folder of images with one folder per class.

    CLASS/*.png                     SET/CLASS/*.png

each also below folders that are the only ones at their level, as archives unpack. Nothing is left
out without being counted, and classes that are called like sets are refused.
"""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.image_files import left_out_line, sorted_out
from fedjax_ht.lab.readers.images import decode_files
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.split_names import refuse_set_names, set_of, sets_of
from fedjax_ht.lab.safe.archive import Origin, listing, printable, user_path

_ORIGIN = Origin(
    "CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), or the same below "
    "train/ and test/",
    "put each class in a folder of its own",
)


def read_folder(path: str, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Reads PATH/CLASS/... or PATH/SET/CLASS/..., see `layout_of`.

    PATH is one of the current folder, or below `data_dir`. Sets are train, test and val by any
    usual name (`split_names.set_of`); they become official sets. Classes are sorted by name. Images
    keep their size, which must be one size then, and are grey only if all are.

    Raises:
      ValueError: there are no images, their sizes differ, or the folders may be classes as well as
        sets.
    """
    root = user_path(path, data_dir)
    if not root.is_dir():
        raise FileNotFoundError("no such folder")
    build = functools.partial(_decode, root, options.image_size)
    return cached("folder", options.image_size, root, (root,), build)


def _decode(root: Path, image_size: int | None, target: Path | None) -> Raw:
    files = sorted_out(*listing(root))
    layout = layout_of(files.images)
    pile, _, converted = decode_files(root, layout.images, image_size, target)
    classes = sorted(set(layout.classes))
    official = {}
    for name in ("train", "val", "test"):
        indices = np.flatnonzero(np.array(layout.sets) == name)
        if len(indices):
            official[name] = indices
    return Raw(
        pile.stack(layout.images),
        np.searchsorted(classes, layout.classes),
        tuple(classes),
        official=official,
        reading=Reading(
            path=str(root),
            left_out=(*files.left_out, *layout.left_out),
            converted=(*layout.converted, *converted),
            warnings=(*left_out_line(files, layout.left_out), *layout.warnings),
        ),
    )


_PLAIN = ("images", "imgs", "image", "img", "data")  # folders that are neither set nor class


class Layout(NamedTuple):
    """The classes and sets of a folder of images.

    Attributes:
      images: names of the images, in the order of the folder.
      classes: class of each image.
      sets: set of each image, "train", "val" or "test"; empty for a folder without sets.
      left_out: images that are in no class.
      converted: lines on the roles of folders, where these are a guess.
      warnings: lines on folders that may be meant otherwise.
    """

    images: tuple[str, ...]
    classes: tuple[str, ...]
    sets: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    converted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def layout_of(images: Mapping[str, tuple[str, ...]]) -> Layout:
    """Finds classes and sets.

    Args:
      images: name of each image -> the folders above it.

    Raises:
      ValueError: no images are in folders, or folders may be classes as well as sets, or domains.
    """
    inside = [above for above in images.values() if above]
    if not inside:
        raise ValueError(f"its {len(images)} images are in no folder of a class")
    below = _common(inside)
    paths = {}
    for name, above in images.items():
        if len(above) > len(below):
            paths[name] = above[len(below) :]
    places, converted = _in_sets(paths, below)
    if not any(place.classes for place in places.values()):
        raise ValueError("its sets have images, but no folders of classes; make a folder a class")
    kept = {name: place for name, place in places.items() if place.classes}
    classes = tuple(printable(place.classes[0]) for place in kept.values())
    sets = tuple(place.of_set for place in kept.values() if place.of_set)
    if below:
        where = printable("/".join(below))
        converted = (f"classes are the folders below {where}", *converted)
    return Layout(
        images=tuple(kept),
        classes=classes,
        sets=sets,
        left_out=_strays(images, kept),
        converted=converted,
        warnings=(*_alike(sorted(set(classes))), *_missing(classes, sets), *_inner(kept.values())),
    )


class _Place(NamedTuple):
    """The set of an image, "" without sets, and its class with the folders below that."""

    of_set: str
    classes: tuple[str, ...]


def _in_sets(
    paths: Mapping[str, tuple[str, ...]], below: Sequence[str]
) -> tuple[dict[str, _Place], tuple[str, ...]]:
    """Finds the set of each image, and says which folders are sets.

    Args:
      paths: name of each image -> the folders above it that are not common to all.
      below: the folders above that are common to all.
    """
    places = {}
    if common_sets := list(filter(None, map(set_of, below))):
        for name, above in paths.items():
            places[name] = _Place(common_sets[-1], above)
        return places, ()
    if sets := _first_sets(paths):
        for name, above in paths.items():
            if above[0] in sets:
                places[name] = _Place(sets[above[0]], _below_set(above))
        return places, _named(sets)
    _refuse_domains(paths)
    for name, above in paths.items():
        places[name] = _Place("", above)
    return places, ()


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The folders that most images are below, one a level, but for that of the images
    themselves."""
    common: tuple[str, ...] = ()
    while True:
        depth = len(common)
        inside = [above for above in paths if above[:depth] == common and len(above) > depth]
        deeper = [above for above in inside if len(above) > depth + 1]
        if len({above[depth] for above in inside}) != 1 or 2 * len(deeper) <= len(inside):
            return common
        common = inside[0][: depth + 1]


def _first_sets(paths: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Folder -> set, of the first level; {} where that has the classes.

    Raises:
      ValueError: it may be either.
    """
    firsts = {above[0] for above in paths.values()}
    if not any(map(set_of, firsts)):
        return {}
    deep = {above[0] for above in paths.values() if len(above) > 1}
    named = sorted(folder for folder in firsts if set_of(folder))
    if len(named) == 1 and named[0] not in deep and len(firsts) > 1:
        return {}  # a class that is called so, such as a train among vehicles
    if flat := [folder for folder in named if folder not in deep]:
        raise ValueError(
            f"{listed(flat)} would be a class by its images and is called like a set; a set has a "
            "folder for each class in it, SET/CLASS/IMAGE; one set alone is read as folder:PATH/SET"
        )
    beside = sorted(firsts - set(named))
    if beside and len(named) == 1:
        raise ValueError(
            f"{named[0]} is called like a set and has folders in it, and {listed(beside)} beside "
            "it is none; leave one of both, SET/CLASS/IMAGE or CLASS/IMAGE"
        )
    return sets_of(named)


def _below_set(above: tuple[str, ...]) -> tuple[str, ...]:
    """The folders below a set, without such that repeat its name or say "images"."""
    inner = above[1:]
    if inner and (set_of(inner[0]) == set_of(above[0]) or inner[0].lower() in _PLAIN):
        return inner[1:]
    return inner


def _named(sets: Mapping[str, str]) -> tuple[str, ...]:
    """Says which folders are sets, unless they are called exactly so."""
    if all(folder == of_folder for folder, of_folder in sets.items()):
        return ()
    pairs = [f"{of_folder} from {printable(folder)}" for folder, of_folder in sets.items()]
    return (f"sets by folders: {', '.join(pairs)}",)


def _refuse_domains(paths: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses folders that all have the same folders in them: those are the classes."""
    inner: dict[str, set[str]] = {}
    for first, *more in paths.values():
        inner.setdefault(first, set()).add(more[0] if more else "")
    same = next(iter(inner.values()))
    if (
        len(inner) > 1
        and len(same) > 1
        and "" not in same
        and all(x == same for x in inner.values())
    ):
        raise ValueError(
            f"{listed(sorted(inner))} each have the folders {listed(sorted(same))}: if these are "
            "the classes, read them as domains:PATH, or call the sets train and test; if they are "
            "none, take away that level"
        )


def _alike(classes: Sequence[str]) -> list[str]:
    """A line on a class that is called like a set.

    Raises:
      ValueError: several are, or all.
    """
    refuse_set_names(classes, "classes", "SET/CLASS/IMAGE")
    return [
        f"class {name} is called like a set, and is read as a class"
        for name in classes
        if set_of(name)
    ]


def _inner(places: Collection[_Place]) -> list[str]:
    """A line on folders of one name in several classes, which may be the classes."""
    above: dict[str, set[str]] = {}
    for place in places:
        if len(place.classes) == 1:
            return []
        above.setdefault(place.classes[1], set()).add(place.classes[0])
    shared = []
    for name, classes in sorted(above.items()):
        if len(classes) > 1:
            shared.append(name)
    if not shared:
        return []
    names = sorted({place.classes[0] for place in places})
    return [
        f"{printable(listed(names))} are taken for classes, and have folders of one name, "
        f"{printable(listed(shared))}: if those are the classes, read domains:PATH"
    ]


def _missing(classes: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Lines on sets that have no images of a class."""
    lines, pairs = [], set(zip(sets, classes))
    for of_images in dict.fromkeys(sets):
        missing = sorted(name for name in set(classes) if (of_images, name) not in pairs)
        if missing:
            lines.append(
                f"set {of_images} has no images of {len(missing)} classes: {listed(missing)}"
            )
    return lines


def _strays(images: Mapping[str, tuple[str, ...]], kept: Collection[str]) -> tuple[LeftOut, ...]:
    """Images that are in no class, counted by their folder."""
    folders = Counter("/".join(above) for name, above in images.items() if name not in kept)
    left_out = []
    for folder, count in folders.items():
        place = f"image in {printable(folder)}" if folder else "image outside of folders"
        left_out.append(LeftOut(count, place, "in no folder of a class"))
    return tuple(left_out)


FOLDER = Source(
    name="folder:PATH",
    place=user_path,
    about="it is a folder of your own, and nothing is to be downloaded",
    read=read_folder,
    origin=_ORIGIN,
)
