"""Images of several domains, one folder a domain: Office-Caltech, DomainNet, PACS and the like."""

import functools
import logging
import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import Origin, reading, user_path
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.cache import cached
from fedjax_ht.data.sources.images import decode_members
from fedjax_ht.data.sources.source import Source

_ORIGIN = Origin(
    "DOMAIN/CLASS/*.png (or .jpg, .jpeg, .bmp, .ppm, .pgm, .webp, .tif), with "
    "splits/DOMAIN_train.txt and splits/DOMAIN_test.txt for each domain or for none",
    "put each domain in a folder of its own, and in it each class",
)
_FILE = re.compile(
    r"^(?P<image>(?!splits/)(?P<domain>[^/]+)/(?:images/)?(?P<class>[^/]+)/"
    r".+\.(?i:png|jpe?g|bmp|p[gp]m|webp|tiff?))$"
)
_SPLITS = ("train", "test")
_SIZE = 64  # of DomainNet in PFLlib and HtFLlib


def read_domains(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Reads PATH/DOMAIN/CLASS/... or PATH/DOMAIN/images/CLASS/...

    PATH is relative to `data_dir` if that is given. `Dataset.groups` are the domains, numbered by
    their names in sorted order. Classes are those of all domains, sorted by name; a domain need not
    have each, and a warning says which has not. With DomainNet's lists, lines
    "DOMAIN/CLASS/FILE NUMBER" in PATH/splits/DOMAIN_train.txt and _test.txt, the set is the images
    that they name, numbers are those of the lists, and the lists are the official sets. Images are
    64 by 64 unless `image_size` is given, and grey only if all are.
    """
    root = user_path(path, data_dir)
    with reading(root, _ORIGIN):
        if not root.is_dir():
            raise FileNotFoundError("no such folder")
        build = functools.partial(_decode, path, root, image_size or _SIZE)
        return cached(f"domains:{path}", image_size or _SIZE, root, (root,), build)


def _decode(path: str, root: Path, image_size: int, target: Path | None) -> Dataset:
    pile, _ = decode_members(root, _FILE, image_size, target)
    matches = {key: match for key in pile.places if (match := _FILE.search(key))}
    domains = sorted({match["domain"] for match in matches.values()})
    lists = _lists(root, domains)
    listed = lists["train"] | lists["test"]
    keys = list(listed or matches)
    if missing := [key for key in listed if key not in matches]:
        raise ValueError(
            f"{len(missing)} of {len(listed)} images of the lists are missing, such as {missing[0]}"
        )
    names, image_domains = [], []
    for key in keys:
        names.append(matches[key]["class"])
        image_domains.append(matches[key]["domain"])
    classes, official = sorted(set(names)), {}
    if listed:
        classes = _numbered(names, list(listed.values()))
        train = len(lists["train"])
        official = {"train": np.arange(train), "test": np.arange(train, len(keys))}
    number = dict(zip(classes, range(len(classes))))
    labels = np.array([number[name] for name in names])
    groups = np.searchsorted(domains, image_domains)
    _warn_of_other_classes(root, domains, groups, classes, labels)
    return Dataset(
        f"domains:{path}",
        pile.stack(keys),
        labels,
        tuple(classes),
        official=official,
        groups=groups,
    )


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
                    f"line {line} of {file} is {limits.short(text)}, not {domain}/CLASS/FILE NUMBER"
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


def _warn_of_other_classes(
    root: Path, domains: list[str], groups: np.ndarray, classes: list[str], labels: np.ndarray
) -> None:
    for i, domain in enumerate(domains):
        missing = np.setdiff1d(np.arange(len(classes)), labels[groups == i]).tolist()
        if missing:
            names = ", ".join(classes[c] for c in missing[:5])
            if len(missing) > 5:
                names += ", ..."
            logging.warning(
                f"{root}: domain {domain} has no images of {len(missing)} of the classes: {names}"
            )


DOMAINS = Source(
    name="domains",
    argument="PATH",
    about="they are folders of your own, and nothing is to be downloaded",
    read=read_domains,
)
