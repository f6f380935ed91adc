"""Tiny ImageNet (Stanford CS231n), 200 classes, as the publisher's .zip or its extracted folder."""

import functools
import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Moments, Source
from fedjax_ht.lab.safe.archive import Origin, reading, search, take

_ORIGIN = Origin(
    "tiny-imagenet-200.zip or its extracted folder, with train/ and val/val_annotations.txt",
    "download it from the dataset's page (Stanford CS231n, Tiny ImageNet)",
)
_PATTERN = re.compile(
    r"(?:^|/)(?:(?P<image>(?:train/n\d+|val)/images/[^/.][^/]*\.JPEG)"
    r"|(?P<text>val/val_annotations\.txt))$"
)


def find_tiny_imagenet(data_dir: Path | None) -> tuple[Path, ...]:
    """The archive, the folder, or a file of the folder; see `archive.search`."""
    files = ("tiny-imagenet-200", "tiny-imagenet-200.zip", "val/val_annotations.txt")
    path = search("tiny_imagenet", data_dir, ("tiny_imagenet", ""), files, _ORIGIN)
    return (path.parents[1] if path.name == "val_annotations.txt" else path,)


def read_tiny_imagenet(data_dir: Path | None, options: ReadOptions) -> Raw:
    """64x64x3, classes by WordNet id in sorted order.

    The official set "test" is the publisher's labelled validation set, since the labels of its test
    set are secret.
    """
    (source,) = find_tiny_imagenet(data_dir)
    with reading(source, _ORIGIN):
        build = functools.partial(_decode, source, options.image_size)
        return cached("tiny_imagenet", options.image_size, data_dir, (source,), build)


def _decode(source: Path, image_size: int | None, target: Path | None) -> Raw:
    warnings = check_sum(MD5, source)
    pile, texts, _ = decode_members(source, _PATTERN, image_size, target)
    (annotations,) = take(texts, ("val/val_annotations.txt",), "files")
    keys = sorted(key for key in pile.places if key.startswith("train/"))
    wnids = [key.split("/")[1] for key in keys]
    classes, train = sorted(set(wnids)), len(keys)
    for line in annotations.splitlines():  # file, class, bounding box
        file, wnid = line.split("\t")[:2]
        keys.append(f"val/images/{file}")
        wnids.append(wnid)
    if unknown := set(wnids) - set(classes):
        raise ValueError(
            f"{len(unknown)} classes of val_annotations.txt have no training images, "
            f"such as {min(unknown)}"
        )
    return Raw(
        pile.stack(keys),
        np.searchsorted(classes, wnids),
        tuple(classes),
        official=one_after_another([("train", train), ("test", len(keys) - train)]),
        reading=Reading(path=str(source), warnings=warnings),
    )


MD5 = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
IMAGENET_MOMENTS = Moments(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TINY_IMAGENET = Source(
    name="tiny_imagenet",
    about="110,000 photographs, 64x64, 200 classes",
    read=read_tiny_imagenet,
    find=find_tiny_imagenet,
    home="http://cs231n.stanford.edu/",
    files={"tiny-imagenet-200.zip": 248_100_043},
    md5=MD5,
    moments=IMAGENET_MOMENTS,
)
