"""Food-101 (Bossard et al. 2014) as the publisher's food-101.tar.gz or its extracted folder."""

import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.cifar import CIFAR100_MOMENTS
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, reading, search, take

_ORIGIN = Origin(
    "food-101.tar.gz or its extracted folder, with images/, meta/train.txt and meta/test.txt",
    "download it from the dataset's page (ETH Zurich, Food-101)",
)
_PATTERN = re.compile(
    r"(?:^|/)(?:images/(?P<image>[^/]+/[^/.][^/]*)\.jpg|(?P<text>meta/(?:train|test)\.txt))$"
)


def find_food101(data_dir: Path | None) -> tuple[Path, ...]:
    """The archive, the folder, or a file of the folder; see `archive.search`."""
    files = ("food-101", "food-101.tar.gz", "food-101.tar", "meta/train.txt")
    path = search("food101", data_dir, ("food101", ""), files, _ORIGIN)
    return (path.parents[1] if path.name == "train.txt" else path,)


def read_food101(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Central squares, 64x64x3 or of `image_size`; official sets train and test."""
    (source,) = find_food101(data_dir)
    size = options.image_size or 64
    with reading(source, _ORIGIN):
        return cached(
            "food101", size, data_dir, (source,), lambda target: _decode(source, size, target)
        )


def _decode(source: Path, size: int, target: Path | None) -> Raw:
    warnings = check_sum(MD5, source)
    pile, texts, _ = decode_members(source, _PATTERN, size, target)
    train, test = (
        text.split() for text in take(texts, ("meta/train.txt", "meta/test.txt"), "files")
    )
    keys = train + test  # such as apple_pie/1005649
    dishes = [key.split("/")[0] for key in keys]
    classes = sorted(set(dishes))
    return Raw(
        pile.stack(keys),
        np.searchsorted(classes, dishes),
        tuple(classes),
        official=one_after_another([("train", len(train)), ("test", len(test))]),
        reading=Reading(path=str(source), warnings=warnings),
    )


MD5 = {"food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87"}
FOOD101 = Source(
    name="food101",
    about="101,000 photographs of dishes, many sizes, 101 classes",
    read=read_food101,
    find=find_food101,
    home="http://data.vision.ee.ethz.ch/cvl/",
    files={"food-101.tar.gz": 4_996_278_331},
    md5=MD5,
    moments=CIFAR100_MOMENTS,  # as in DFRD's released code
)
