"""Any folder of images with one folder per class.

    CLASS/*.png                     SET/CLASS/*.png

each also below folders that are the only ones at their level, as archives unpack. Nothing is left
out without being counted, and classes that are called like sets are refused.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed, short
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.file_names import (
    SETS,
    left_out_line,
    refuse_set_names,
    set_of,
    sets_of,
    sorted_out,
)
from fedjax_ht.lab.readers.images import decode_files
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, one_after_another
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, listing, printable, read_whole

_ORIGIN = Origin(
    "CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), or the same below "
    "train/ and test/",
    "put each class in a folder of its own",
)


def read_folder(root: Path, options: ReadOptions) -> Raw:
    """Reads CLASS/... or SET/CLASS/... of a folder, see `layout_of`.

    Sets are train, test and val by any
    usual name (`split_names.set_of`); they become official sets. Classes are sorted by name. Images
    keep their size, which must be one size then, and are grey only if all are.

    Raises:
      ValueError: there are no images, their sizes differ, or the folders may be classes as well as
        sets.
    """
    files = sorted_out(*listing(root))
    layout = layout_of(files.images)
    pile, _, converted = decode_files(root, layout.images, options.image_size, options.target)
    classes = sorted(set(layout.classes))
    sets = np.array(layout.sets)
    official = {name: np.flatnonzero(sets == name) for name in SETS if name in layout.sets}
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
    strays = Counter("/".join(above) for name, above in images.items() if name not in kept)
    if below:
        where = printable("/".join(below))
        converted = (f"classes are the folders below {where}", *converted)
    return Layout(
        images=tuple(kept),
        classes=classes,
        sets=sets,
        left_out=_strays(strays, "in no folder of a class"),
        converted=converted,
        warnings=(
            *_alike(sorted(set(classes))),
            *_missing("set", sets, classes),
            *_inner(kept.values()),
        ),
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


def _missing(kind: str, owners: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Lines on sets or domains that have no images of a class; owner and class of each image."""
    lines, pairs = [], set(zip(owners, classes))
    for owner in sorted(set(owners)):
        missing = sorted(name for name in set(classes) if (owner, name) not in pairs)
        if missing:
            names = listed(missing)
            lines.append(f"{kind} {owner} has no images of {len(missing)} of the classes: {names}")
    return lines


def _strays(counts: Mapping[str, int], why: str) -> tuple[LeftOut, ...]:
    """Images that are in no class, by their folder."""
    left_out = []
    for folder, count in counts.items():
        place = f"image in {printable(folder)}" if folder else "image outside of folders"
        left_out.append(LeftOut(count, place, why))
    return tuple(left_out)


FOLDER = Source(
    name="folder:PATH",
    about="it is a folder of your own, and nothing is to be downloaded",
    read=read_folder,
    origins=(_ORIGIN,),
    is_kept=True,
)


_DOMAINS_ORIGIN = Origin(
    "DOMAIN/CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), with "
    "splits/DOMAIN_train.txt and splits/DOMAIN_test.txt for each domain or for none",
    "put each domain in a folder of its own, and in it each class",
)
_LISTS = "splits"  # the folder of DomainNet's lists
_SPLITS = ("train", "test")


class _DomainPlaces(NamedTuple):
    """The domain and the class of each image, by its name, and the images that are in no class."""

    domains: dict[str, str]
    classes: dict[str, str]
    strays: tuple[LeftOut, ...]


def read_domains(root: Path, options: ReadOptions) -> Raw:
    """Reads DOMAIN/CLASS/... or DOMAIN/images/CLASS/... of a folder.

    `Dataset.groups` are the domains,
    numbered by their names in sorted order. Classes are those of all domains, sorted by name; a
    domain need not have each, and a warning says which has not. With DomainNet's lists, lines
    "DOMAIN/CLASS/FILE NUMBER" in splits/DOMAIN_train.txt and _test.txt, the set is the images
    that they name, numbers are those of the lists, and the lists are the official sets. Images are
    64 by 64 unless `image_size` is given, and grey only if all are.
    """
    files = sorted_out(*listing(root))
    places = _domain_places(files.images)
    domains = sorted(set(places.domains.values()))
    lists = _lists(root, domains)
    listed = lists["train"] | lists["test"]
    keys = list(listed or places.classes)
    if missing := [key for key in listed if key not in places.classes]:
        raise ValueError(
            f"{len(missing)} of {len(listed)} images of the lists are missing, such as {missing[0]}"
        )
    names = [places.classes[key] for key in keys]
    classes, official, unlisted = sorted(set(names)), {}, ()
    if listed:
        classes = _numbered(names, list(listed.values()))
        official = one_after_another((split, len(lists[split])) for split in _SPLITS)
        if more := len(places.classes) - len(listed):
            unlisted = (LeftOut(more, "image", "in no list of splits/"),)
    refuse_set_names(classes, "classes", "DOMAIN/CLASS/IMAGE")
    refuse_set_names(domains, "domains", "and read sets as folder:PATH")
    number = dict(zip(classes, range(len(classes))))
    labels = np.array([number[name] for name in names])
    of_images = [places.domains[key] for key in keys]
    pile, _, converted = decode_files(root, keys, options.image_size, options.target)
    return Raw(
        pile.stack(keys),
        labels,
        tuple(map(printable, classes)),
        official=official,
        groups=np.searchsorted(domains, of_images),
        reading=Reading(
            path=str(root),
            group_names=tuple(map(printable, domains)),
            left_out=(*files.left_out, *places.strays, *unlisted),
            converted=converted,
            warnings=(
                *left_out_line(files, places.strays),
                *([f"all images are of one domain, {domains[0]}"] if len(domains) == 1 else []),
                *_missing("domain", of_images, names),
            ),
        ),
    )


def _domain_places(images: Mapping[str, tuple[str, ...]]) -> _DomainPlaces:
    """Finds the domain and class of each image by the folders above it."""
    domains, classes, strays = {}, {}, Counter()
    depth = _above_domains(list(images.values()))
    for name, folders in images.items():
        above = list(folders[depth:])
        if above[:1] == [_LISTS]:
            strays[_LISTS] += 1
            continue
        inner = above[1:]
        if inner[:1] == ["images"]:
            inner = inner[1:]
        if inner:
            domains[name], classes[name] = above[0], inner[0]
        else:
            strays["/".join(above)] += 1
    left_out = _strays(strays, "in no folder of a class of a domain")
    if not classes:
        raise ValueError(f"no images, only {', '.join(map(str, left_out))}")
    return _DomainPlaces(domains, classes, left_out)


def _above_domains(paths: Sequence[tuple[str, ...]]) -> int:
    """The number of folders above the domains, which are the only ones at their level."""
    depth = 0
    while len({above[: depth + 1] for above in paths}) == 1:
        inner = {above[depth + 1 : depth + 2] for above in paths}
        if inner == {("images",)} or any(len(above) < depth + 3 for above in paths):
            break
        depth += 1
    return depth


def _lists(root: Path, domains: list[str]) -> dict[str, dict[str, int]]:
    """Split -> image -> number of its class; {} for both splits without lists."""
    lists = {split: _listed_of(root, domains, split) for split in _SPLITS}
    train, test = lists.values()
    if train.keys() & test.keys() or bool(train) != bool(test):
        raise ValueError(
            "an image is in a train and a test list, or there are no lists of one of the two"
        )
    return lists


def _listed_of(root: Path, domains: list[str], split: str) -> dict[str, int]:
    """Image -> number of its class, of all domains' lists; {} if no domain has one."""
    files = {domain: f"splits/{domain}_{split}.txt" for domain in domains}
    absent = [file for file in files.values() if not (root / file).exists()]
    if len(absent) == len(files):
        return {}
    if absent:
        raise ValueError(
            f"no {absent[0]}, but lists of other domains; give a list for each domain or for none"
        )
    numbers = {}
    for domain, file in files.items():
        lines = read_whole(root / file, limits.TEXT_BYTES).decode().splitlines()
        for line, text in enumerate(lines, 1):
            key, _, number = text.strip().rpartition(" ")
            if not re.fullmatch(r"\d{1,6}", number) or not key.startswith(f"{domain}/"):
                raise ValueError(
                    f"line {line} of {file} is {short(text)}, not {domain}/CLASS/FILE NUMBER"
                )
            numbers[key] = int(number)
    return numbers


def _numbered(names: list[str], numbers: list[int]) -> list[str]:
    """Classes by their numbers in the lists."""
    pairs = sorted(set(zip(numbers, names)))
    classes = [name for _, name in pairs]
    known = sorted(set(numbers))
    if known != list(range(len(pairs))) or len(set(classes)) < len(pairs):
        raise ValueError(
            f"the lists give {len(set(names))} classes {len(pairs)} numbers; each class must have "
            "one number, counted from 0"
        )
    return classes


DOMAINS = Source(
    name="domains:PATH",
    about="they are folders of your own, and nothing is to be downloaded",
    read=read_domains,
    origins=(_DOMAINS_ORIGIN,),
    is_kept=True,
    size=64,  # of DomainNet in PFLlib and HtFLlib
)
