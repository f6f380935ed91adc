"""Images of several domains, one folder a domain: Office-Caltech, DomainNet, PACS, Digit-5 and the
like."""

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
    r"^(?P<image>(?!splits/)(?P<domain>[^/]+)/(?:images/)?(?P<class>[^/]+)/.+\.(?i:png|jpe?g|bmp|p[gp]m|webp|tiff?))$"
)
_SPLITS = ("train", "test")
_SIZE = 64  # of DomainNet in PFLlib and HtFLlib


def read_domains(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """PATH/DOMAIN/CLASS/..., or PATH/DOMAIN/images/CLASS/..., where PATH is relative to `data_dir`
    if that is given.

    `Dataset.groups` are the domains, numbered by their names in sorted order. Classes are those of
    all domains, sorted by name; a domain need not have each, and a warning says which has not. With
    DomainNet's own lists, lines "DOMAIN/CLASS/FILE NUMBER" in PATH/splits/DOMAIN_train.txt and
    _test.txt, the set is the images that they name, numbers are those of the lists, and the lists
    are the official sets. Images are 64 by 64 unless `image_size` is given, and grey only if all
    are.
    """
    root = user_path(path, data_dir)
    with reading(root, _ORIGIN):
        if not root.is_dir():
            raise FileNotFoundError("there is no such folder")
        build = functools.partial(_decode, path, root, image_size or _SIZE)
        return cached(f"domains:{path}", image_size or _SIZE, root, (root,), build)


def _decode(path: str, root: Path, image_size: int, target: Path | None) -> Dataset:
    pile, _ = decode_members(root, _FILE, image_size, target)
    found = {key: _FILE.search(key) for key in pile.places}
    domains = sorted({match["domain"] for match in found.values()})
    lists = {split: _listed(root, domains, split) for split in _SPLITS}
    listed = lists["train"] | lists["test"]
    if len(listed) < sum(map(len, lists.values())) or bool(lists["train"]) != bool(lists["test"]):
        raise ValueError(
            "an image is in a train and a test list, or there are no lists of one of the two"
        )
    keys = list(listed or found)
    if unknown := [key for key in listed if key not in found]:
        raise ValueError(
            f"{len(unknown)} of {len(listed)} images of the lists are missing, such as {unknown[0]}"
        )
    names = [found[key]["class"] for key in keys]
    classes = _numbered(names, list(listed.values())) if listed else sorted(set(names))
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[name] for name in names])
    groups = np.searchsorted(domains, [found[key]["domain"] for key in keys])
    _warn_of_other_classes(root, domains, groups, classes, labels)
    ends = np.cumsum([0, *map(len, lists.values())])
    official = (
        {split: np.arange(*ends[i : i + 2]) for i, split in enumerate(_SPLITS)} if listed else {}
    )
    return Dataset(
        f"domains:{path}",
        pile.stack(keys),
        labels,
        tuple(classes),
        official=official,
        groups=groups,
    )


def _listed(root: Path, domains: list[str], split: str) -> dict[str, int]:
    """Image -> number of its class, of all domains' lists; {} if no domain has one."""
    there = [domain for domain in domains if (root / f"splits/{domain}_{split}.txt").exists()]
    if there and there != domains:
        missing = next(domain for domain in domains if domain not in there)
        raise ValueError(f"there is no splits/{missing}_{split}.txt, but others are there")
    found = {}
    for domain in there:
        name = f"splits/{domain}_{split}.txt"
        for line, text in enumerate(
            read_whole(root / name, limits.TEXT_BYTES).decode().splitlines(), 1
        ):
            key, _, number = text.strip().rpartition(" ")
            if not re.fullmatch(r"\d{1,6}", number) or not key.startswith(f"{domain}/"):
                raise ValueError(
                    f"line {line} of {name} is {limits.short(text)}, not {domain}/CLASS/FILE NUMBER"
                )
            found[key] = int(number)
    return found


def _numbered(names: list[str], numbers: list[int]) -> list[str]:
    """Classes by their numbers in the lists."""
    pairs = sorted(set(zip(numbers, names)))
    if [number for number, _ in pairs] != list(range(len(pairs))) or len(
        {name for _, name in pairs}
    ) < len(pairs):
        raise ValueError(
            f"the lists have {len(set(names))} classes, and {len(pairs)} numbers of them, not each "
            "from 0"
        )
    return [name for _, name in pairs]


def _warn_of_other_classes(
    root: Path, domains: list[str], groups: np.ndarray, classes: list[str], labels: np.ndarray
):
    for i, domain in enumerate(domains):
        if missing := np.setdiff1d(np.arange(len(classes)), labels[groups == i]).tolist():
            which = ", ".join(classes[c] for c in missing[:5]) + (
                ", ..." if len(missing) > 5 else ""
            )
            logging.warning(
                f"{root}: domain {domain} has no images of {len(missing)} of the classes: {which}"
            )


DOMAINS = Source(
    name="domains",
    argument="PATH",
    about="they are folders of your own, and nothing is to be downloaded",
    read=read_domains,
)
