"""Reads folders of images with one folder per class, or one per domain and class.

    CLASS/*.png        SET/CLASS/*.png        DOMAIN/CLASS/*.png

Each may lie below single nested folders, as archives unpack. Every skipped file is counted, and
classes named like sets are rejected.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.images import decode_files
from fedjax_ht.lab.readers.roles import SETS, set_of, sets_of
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source
from fedjax_ht.lab.safe.bounded import Origin, files_below, printable

_ORIGIN = Origin(
    "CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), or the same below "
    "train/ and test/",
    "put each class in its own folder",
)


_PLAIN = ("images", "imgs", "image", "img", "data")  # folders that are neither set nor class


def read_folder(root: Path, options: ReadOptions) -> Raw:
    """Reads CLASS/... or SET/CLASS/... from a folder.

    Folders with a usual name of train, test or val (`roles.set_of`) become official sets. Classes
    are sorted by name. Images keep their size, which must then be the same for all; they are grey
    only if all are.

    Raises:
      ValueError: there are no images, their sizes differ, or the folders may be either classes or
        sets.
    """
    images, others = _files_of(root)
    below = _common(list(images.values()), 1)
    common = [set_of(folder) for folder in below if set_of(folder)]
    inner = [above[len(below) :] for above in images.values()]
    sets = {} if common else _first_sets([above for above in inner if above])

    def place(above: tuple[str, ...]) -> _Place:
        above = above[len(below) :]
        if not sets:
            return _Place(common[-1] if common else "", above)
        if not above or above[0] not in sets:
            return _Place("", ())
        return _Place(sets[above[0]], _below_set(above))

    places, strays = _placed(images, place, "not in a class folder")
    if not sets:
        _refuse_shared(places.values())
    owners, labels, classes = _owners_and_classes(places, "SET/CLASS/IMAGE")
    alike = [f"class {x} is named like a set but is read as a class" for x in classes if set_of(x)]
    notes = []
    if below:
        notes.append(f"classes are the folders below {printable('/'.join(below))}")
    if any(folder != of_folder for folder, of_folder in sets.items()):
        pairs = [f"{of_folder} from {printable(folder)}" for folder, of_folder in sets.items()]
        notes.append(f"sets by folders: {', '.join(pairs)}")
    pile = decode_files(root, places, options.image_size, options.target)
    return Raw(
        pile.stack(list(places)),
        labels,
        classes,
        official={x: np.flatnonzero(np.array(owners) == x) for x in SETS if x in owners},
        reading=Reading(
            left_out=(*others, *strays),
            converted=tuple(notes),
            warnings=(*alike, *_missing("set", owners, labels, classes)),
        ),
    )


class _Place(NamedTuple):
    """An image's set or domain ("" for none), and its class followed by the folders below it."""

    owner: str
    classes: tuple[str, ...]


_Images = Mapping[str, tuple[str, ...]]  # image name -> the folders above it

ENDINGS = (
    *("png", "jpg", "jpeg", "jpe", "jfif", "bmp", "webp", "tif", "tiff", "gif"),
    *("ppm", "pgm", "pbm", "pnm"),
)
"""Lower-case extensions of the image files that are read."""

_BESIDE = (
    *("txt", "csv", "tsv", "json", "xml", "yaml", "yml"),
    *("md", "html", "pdf", "db", "ini", "py"),
)
"""Lower-case extensions of files that usually accompany images."""


def _files_of(root: Path) -> tuple[_Images, tuple[LeftOut, ...]]:
    """Separates a folder's images from other files, which are counted by extension.

    Raises:
      ValueError: there are no images.
    """
    images, endings = {}, Counter()
    for path in files_below(root):
        name = path.relative_to(root).as_posix()
        *above, file = name.split("/")
        ending = file.rpartition(".")[2].lower() if "." in file else ""
        if ending in ENDINGS:
            images[name] = tuple(above)
        else:
            endings[ending] += 1
    left_out = []
    for ending, count in sorted(endings.items()):
        what = f"file .{ending}" if ending else "file without an ending"
        is_usual = ending in _BESIDE
        left_out.append(LeftOut(count, printable(what), "unsupported image format", is_usual))
    if not images:
        only = f", only {listed(list(map(str, left_out)))}" if left_out else ""
        raise ValueError(f"no images{only}")
    return images, tuple(left_out)


def _placed(
    images: _Images, place: Callable[[tuple[str, ...]], _Place], why: str
) -> tuple[dict[str, _Place], tuple[LeftOut, ...]]:
    """Returns each image's place by its folders, and the number of images without a class.

    Raises:
      ValueError: no image has a class.
    """
    places, strays = {}, Counter()
    for name, above in images.items():
        found = place(above)
        if found.classes:
            places[name] = found
        else:
            strays["/".join(above)] += 1
    left_out = []
    for folder, count in strays.items():
        what = f"image in {printable(folder)}" if folder else "image outside of folders"
        left_out.append(LeftOut(count, what, why))
    if not places:
        raise ValueError(f"no images of classes, only {', '.join(map(str, left_out))}")
    return places, tuple(left_out)


def _common(paths: Sequence[tuple[str, ...]], levels: int) -> tuple[str, ...]:
    """Returns the leading folders common to most images, with at least `levels` levels below."""
    common: tuple[str, ...] = ()
    while True:
        depth = len(common)
        inside = [above for above in paths if above[:depth] == common and len(above) > depth]
        deeper = [above for above in inside if len(above) > depth + levels]
        if len({above[depth] for above in inside}) != 1 or 2 * len(deeper) <= len(inside):
            return common
        common = inside[0][: depth + 1]


def _first_sets(paths: Collection[tuple[str, ...]]) -> dict[str, str]:
    """Returns folder -> set for the first level; {} if that level holds the classes.

    Raises:
      ValueError: it may be either.
    """
    firsts = {above[0] for above in paths}
    if not any(map(set_of, firsts)):
        return {}
    deep = {above[0] for above in paths if len(above) > 1}
    named = sorted(folder for folder in firsts if set_of(folder))
    if len(named) == 1 and named[0] not in deep and len(firsts) > 1:
        return {}  # a class with the name of a set, such as a train among vehicles
    if flat := [folder for folder in named if folder not in deep]:
        raise ValueError(
            f"{listed(flat)} would be a class by its images but is named like a set; a set has a "
            "folder for each class, SET/CLASS/IMAGE; read a single set as folder:PATH/SET"
        )
    beside = sorted(firsts - set(named))
    if beside and len(named) == 1:
        raise ValueError(
            f"{named[0]} is named like a set and has subfolders, but {listed(beside)} beside "
            "it is not a set; use either SET/CLASS/IMAGE or CLASS/IMAGE"
        )
    return sets_of(named)


def _below_set(above: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the folders below a set, skipping one that repeats its name or says "images"."""
    inner = above[1:]
    if inner and (set_of(inner[0]) == set_of(above[0]) or inner[0].lower() in _PLAIN):
        return inner[1:]
    return inner


def _refuse_shared(places: Collection[_Place]) -> None:
    """Rejects classes that all contain the same folders.

    Raises:
      ValueError: they share several folders, which may be the real classes.
    """
    inner: dict[str, set[str]] = {}
    for place in places:
        inner.setdefault(place.classes[0], set()).add("".join(place.classes[1:2]))
    shared = set.intersection(*inner.values())
    if len(inner) > 1 and len(shared) > 1 and all(each == shared for each in inner.values()):
        raise ValueError(
            f"{listed(sorted(inner))} each have the folders {listed(sorted(shared))}: if these are "
            "the classes, read them as domains:PATH, or name the sets train and test; if not, "
            "remove that level"
        )


def refuse_set_names(names: Collection[str], what: str, layout: str) -> None:
    """Rejects classes or domains named like sets, except a single one among others.

    Args:
      names: names of the classes or domains.
      what: kind of the names, "classes" or "domains", for the error.
      layout: a supported folder layout, or another remedy, for the error.

    Raises:
      ValueError: more than one name, or every name, is that of a set.
    """
    alike = sorted(filter(set_of, names))
    if len(alike) > 1 or (alike and len(alike) == len(names)):
        raise ValueError(
            f"its {what} would be {listed(sorted(names))}, but {listed(alike)} are named "
            f"like sets; sort the folders, {layout}"
        )


def _owners_and_classes(
    places: Mapping[str, _Place], layout: str
) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Returns each image's set or domain and its class, and all class names in order.

    Raises:
      ValueError: classes are named like sets, see `refuse_set_names`.
    """
    owners = [place.owner for place in places.values()]
    names = [printable(place.classes[0]) for place in places.values()]
    classes, labels = np.unique(names, return_inverse=True)
    refuse_set_names(classes.tolist(), "classes", layout)
    return owners, labels, tuple(classes.tolist())


def _missing(
    kind: str, owners: Sequence[str], labels: np.ndarray, classes: Sequence[str]
) -> list[str]:
    """Returns messages about sets or domains that have no images of a class."""
    lines, pairs = [], set(zip(owners, labels.tolist()))
    for owner in sorted(set(owners)):
        missing = [name for i, name in enumerate(classes) if (owner, i) not in pairs]
        if missing:
            names = listed(missing)
            lines.append(f"{kind} {owner} has no images of {len(missing)} of the classes: {names}")
    return lines


FOLDER = Source(
    name="folder:PATH",
    about="it is your own folder; nothing to download",
    read=read_folder,
    origins=(_ORIGIN,),
    is_kept=True,
)


_DOMAINS_ORIGIN = Origin(
    "DOMAIN/CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif)",
    "put each domain in its own folder, and in it each class",
)


def read_domains(root: Path, options: ReadOptions) -> Raw:
    """Reads DOMAIN/CLASS/... or DOMAIN/images/CLASS/... from a folder.

    `Dataset.groups` are the domains, numbered in sorted order of their names. Classes are those of
    all domains, sorted by name; a warning names the classes that a domain lacks. Images are 64 by
    64 unless `image_size` is given, and grey only if all are.
    """
    images, others = _files_of(root)
    paths = {name: tuple(x for x in above if x != "images") for name, above in images.items()}
    depth = len(_common(list(paths.values()), 2))

    def place(above: tuple[str, ...]) -> _Place:
        return _Place("".join(above[depth : depth + 1]), above[depth + 1 :])

    why = "not in a class folder of a domain"
    places, strays = _placed(paths, place, why)
    owners, labels, classes = _owners_and_classes(places, "DOMAIN/CLASS/IMAGE")
    domains = sorted(set(owners))
    refuse_set_names(domains, "domains", "and read sets as folder:PATH")
    pile = decode_files(root, places, options.image_size, options.target)
    return Raw(
        pile.stack(list(places)),
        labels,
        classes,
        groups=np.searchsorted(domains, owners),
        reading=Reading(
            group_names=tuple(map(printable, domains)),
            left_out=(*others, *strays),
            warnings=(
                *([f"all images are of one domain, {domains[0]}"] if len(domains) == 1 else []),
                *_missing("domain", owners, labels, classes),
            ),
        ),
    )


DOMAINS = Source(
    name="domains:PATH",
    about="they are your own folders; nothing to download",
    read=read_domains,
    origins=(_DOMAINS_ORIGIN,),
    is_kept=True,
    size=64,  # as for DomainNet in PFLlib and HtFLlib
)
