"""Images of several domains, one folder a domain: Office-Caltech, DomainNet, PACS and the like."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed, short
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.image_files import left_out_line, sorted_out
from fedjax_ht.lab.readers.images import decode_files
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.split_names import refuse_set_names
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, listing, printable, user_path
from fedjax_ht.lab.safe.bounded import read_whole

_ORIGIN = Origin(
    "DOMAIN/CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), with "
    "splits/DOMAIN_train.txt and splits/DOMAIN_test.txt for each domain or for none",
    "put each domain in a folder of its own, and in it each class",
)
_LISTS = "splits"  # the folder of DomainNet's lists
_SPLITS = ("train", "test")
_SIZE = 64  # of DomainNet in PFLlib and HtFLlib


def read_domains(path: str, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Reads PATH/DOMAIN/CLASS/... or PATH/DOMAIN/images/CLASS/...

    PATH is one of the current folder, or below `data_dir`. `Dataset.groups` are the domains,
    numbered by their names in sorted order. Classes are those of all domains, sorted by name; a
    domain need not have each, and a warning says which has not. With DomainNet's lists, lines
    "DOMAIN/CLASS/FILE NUMBER" in PATH/splits/DOMAIN_train.txt and _test.txt, the set is the images
    that they name, numbers are those of the lists, and the lists are the official sets. Images are
    64 by 64 unless `image_size` is given, and grey only if all are.
    """
    root = user_path(path, data_dir)
    if not root.is_dir():
        raise FileNotFoundError("no such folder")
    size = options.image_size or _SIZE
    build = functools.partial(_decode, root, size)
    return cached("domains", size, root, (root,), build)


class _Places(NamedTuple):
    """The domain and the class of each image, by its name, and the images that are in no class."""

    domains: dict[str, str]
    classes: dict[str, str]
    strays: tuple[LeftOut, ...]


def _decode(root: Path, image_size: int, target: Path | None) -> Raw:
    files = sorted_out(*listing(root))
    places = _places(files.images)
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
    groups = np.searchsorted(domains, [places.domains[key] for key in keys])
    pile, _, converted = decode_files(root, keys, image_size, target)
    return Raw(
        pile.stack(keys),
        labels,
        tuple(map(printable, classes)),
        official=official,
        groups=groups,
        reading=Reading(
            path=str(root),
            group_names=tuple(map(printable, domains)),
            left_out=(*files.left_out, *places.strays, *unlisted),
            converted=converted,
            warnings=(
                *left_out_line(files, places.strays),
                *([f"all images are of one domain, {domains[0]}"] if len(domains) == 1 else []),
                *_other_classes(domains, groups, classes, labels),
            ),
        ),
    )


def _places(images: Mapping[str, tuple[str, ...]]) -> _Places:
    """Finds the domain and class of each image by the folders above it."""
    domains, classes, strays = {}, {}, Counter()
    depth = _depth(list(images.values()))
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
    left_out = []
    for folder, count in strays.items():
        place = f"image in {printable(folder)}" if folder else "image outside of folders"
        left_out.append(LeftOut(count, place, "in no folder of a class of a domain"))
    if not classes:
        raise ValueError(f"no images, only {', '.join(map(str, left_out))}")
    return _Places(domains, classes, tuple(left_out))


def _depth(paths: Sequence[tuple[str, ...]]) -> int:
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
    lists = {split: _listed(root, domains, split) for split in _SPLITS}
    train, test = lists.values()
    if train.keys() & test.keys() or bool(train) != bool(test):
        raise ValueError(
            "an image is in a train and a test list, or there are no lists of one of the two"
        )
    return lists


def _listed(root: Path, domains: list[str], split: str) -> dict[str, int]:
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


def _other_classes(
    domains: list[str], groups: np.ndarray, classes: list[str], labels: np.ndarray
) -> list[str]:
    """Lines on domains that have no images of a class."""
    lines = []
    for i, domain in enumerate(domains):
        missing = np.setdiff1d(np.arange(len(classes)), labels[groups == i]).tolist()
        if missing:
            names = listed([classes[c] for c in missing])
            lines.append(f"domain {domain} has no images of {len(missing)} of the classes: {names}")
    return lines


DOMAINS = Source(
    name="domains:PATH",
    place=user_path,
    about="they are folders of your own, and nothing is to be downloaded",
    read=read_domains,
    origin=_ORIGIN,
)
