"""Reads Tiny ImageNet (Stanford CS231n), and Camelyon17 as WILDS publishes it.

Sources: Bandi et al. 2018, Koh et al. 2021.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.source import (
    IMAGENET_MOMENTS,
    File,
    Raw,
    ReadOptions,
    Source,
    one_after_another,
)
from fedjax_ht.lab.readers.table_files import table_with_head
from fedjax_ht.lab.safe.bounded import Origin, take

_TINY_IMAGENET = re.compile(
    r"(?:^|/)(?:(?P<image>(?:train/n\d+|val)/images/[^/.][^/]*\.JPEG)"
    r"|(?P<text>val/val_annotations\.txt))$"
)


def read_tiny_imagenet(source: Path, options: ReadOptions) -> Raw:
    """Reads images of 64x64x3 from an archive or its extracted folder; classes sorted by name.

    The official set "test" is the publisher's labelled validation set: the labels of its test set
    are secret.
    """
    pile, texts = decode_members(source, _TINY_IMAGENET, options.image_size, options.target)
    (annotations,) = take(texts, ("val/val_annotations.txt",), "files")
    keys = sorted(key for key in pile.places if key.startswith("train/"))
    wnids, train = [key.split("/")[1] for key in keys], len(keys)
    for line in annotations.splitlines():  # file, class, bounding box
        file, wnid = line.split("\t")[:2]
        keys.append(f"val/images/{file}")
        wnids.append(wnid)
    if unknown := set(wnids[train:]) - set(wnids[:train]):
        raise ValueError(
            f"{len(unknown)} classes of val_annotations.txt have no training images, "
            f"such as {min(unknown)}"
        )
    classes = sorted(set(wnids))
    return Raw(
        pile.stack(keys),
        np.searchsorted(classes, wnids),
        tuple(classes),
        official=one_after_another([("train", train), ("test", len(keys) - train)]),
    )


TINY_IMAGENET = Source(
    name="tiny_imagenet",
    about="110,000 photographs, 64x64, 200 classes",
    read=read_tiny_imagenet,
    origins=(
        Origin(
            "tiny-imagenet-200.zip or its extracted folder, with train/ and "
            "val/val_annotations.txt",
            "download it from the dataset's page (Stanford CS231n, Tiny ImageNet)",
            names=("tiny-imagenet-200", "tiny-imagenet-200.zip"),
            markers=("val/val_annotations.txt",),
        ),
    ),
    is_kept=True,
    home="http://cs231n.stanford.edu/",
    files={"tiny-imagenet-200.zip": File(248_100_043, "90528d7ca1a48142e341f4ef8d21d0de")},
    moments=IMAGENET_MOMENTS,
)


_TISSUES = ("normal", "tumor")
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CAMELYON17 = tuple(
    Origin(
        "the folder camelyon17_v1.0, with metadata.csv and patches/patient_P_node_N/*.png",
        "download it from the dataset's page (WILDS, Camelyon17-wilds)",
        fetched=False,
        names=(name,),
        folders=("camelyon17", "camelyon17_v1.0", "camelyon17/camelyon17_v1.0", ""),
    )
    for name in ("metadata.csv", "patches")
)
_PATCH = re.compile(
    r"^(?P<image>patient_\w+_node_\w+/patch_patient_\w+_node_\w+_x_\w+_y_\w+\.png)$"
)
_VAL, _TEST = 1, 2  # hospitals without training samples


def read_camelyon17(table: Path, patches: Path, options: ReadOptions) -> Raw:
    """Reads 455,954 patches of 96x96x3 by WILDS' table, normal or tumor in the central 32x32.

    `Dataset.groups` are the hospitals, 0 to 4. Official sets are those of WILDS: "val" and "test"
    are all patches of hospitals 1 and 2; "train" and "id_val" are those of the other three, by the
    column split (0 and 1).
    """
    keys, values = _patches(table)
    labels, hospitals, splits = np.array(values).T
    pile, _ = decode_members(patches, _PATCH, options.image_size, options.target)
    official = _wilds_sets(hospitals, splits)
    return Raw(pile.stack(keys), labels, _TISSUES, official=official, groups=hospitals)


def _patches(table: Path) -> tuple[list[str], list[list[int]]]:
    """Returns the file and (class, hospital, split) of each patch in metadata.csv."""
    data = table_with_head(table)
    if missing := [name for name in _COLUMNS if name not in data.column_names]:
        raise ValueError(f"metadata.csv has no column {', '.join(missing)}")
    keys, values = [], []
    for i, cells in enumerate(zip(*(data[name].to_pylist() for name in _COLUMNS))):
        # only word characters, since the cells become a path
        if not all(map(_WORD.fullmatch, cells)) or not all(map(_DIGIT.fullmatch, cells[4:])):
            raise ValueError(f"row {i + 1} of metadata.csv is {short(cells)}")
        patient, node, x, y = cells[:4]
        name = f"patient_{patient}_node_{node}"
        keys.append(f"{name}/patch_{name}_x_{x}_y_{y}.png")
        values.append(list(map(int, cells[4:])))
    if not keys:
        raise ValueError("metadata.csv has no rows")
    return keys, values


_WORD, _DIGIT = re.compile(r"\w{1,20}"), re.compile(r"[0-9]")


def _wilds_sets(hospitals: Sequence[int], splits: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns the official sets as WILDS reads the table."""
    seen = (hospitals != _VAL) & (hospitals != _TEST)
    sets = {"train": seen & (splits == 0), "id_val": seen & (splits == 1)}
    sets |= {"val": hospitals == _VAL, "test": hospitals == _TEST}
    return dict(zip(sets, map(np.flatnonzero, sets.values())))


CAMELYON17 = Source(
    name="camelyon17",
    about="patches of lymph nodes of five hospitals, 96x96; download them from the page of WILDS",
    read=read_camelyon17,
    origins=_CAMELYON17,
    is_kept=True,
)
