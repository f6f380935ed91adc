"""Camelyon17 as WILDS publishes it: patches of lymph nodes of five hospitals.

Sources: Bandi et al. 2018, Koh et al. 2021.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.csv_file import table_with_head
from fedjax_ht.lab.readers.images import decode_members
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, reading, search

CLASSES = ("normal", "tumor")
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_ORIGIN = Origin(
    "the folder camelyon17_v1.0, with metadata.csv and patches/patient_P_node_N/*.png",
    "download it from the dataset's page (WILDS, Camelyon17-wilds)",
    fetched=False,
)
_PATCH = re.compile(
    r"^(?P<image>patches/patient_\w+_node_\w+/patch_patient_\w+_node_\w+_x_\w+_y_\w+\.png)$"
)
_VAL, _TEST = 1, 2  # hospitals, of which nothing trains


def find_camelyon17(data_dir: Path | None) -> tuple[Path, ...]:
    """The table and the folder of the patches; see `archive.search`."""
    folders = ("camelyon17", "camelyon17_v1.0", "camelyon17/camelyon17_v1.0", "")
    table = search("camelyon17", data_dir, folders, ("metadata.csv",), _ORIGIN)
    return table, table.parent / "patches"


def read_camelyon17(data_dir: Path | None, options: ReadOptions) -> Raw:
    """455,954 patches of 96x96x3 by the publisher's table, normal or tumor in the central 32x32.

    `Dataset.groups` are the hospitals, 0 to 4. Official sets are those of WILDS: "val" and "test"
    are all patches of hospitals 1 and 2, "train" and "id_val" those of the other three, by the
    column split (0 and 1).
    """
    table, patches = find_camelyon17(data_dir)
    with reading(table.parent, _ORIGIN):
        build = functools.partial(_decode, table, options.image_size)
        return cached("camelyon17", options.image_size, data_dir, (table, patches), build)


def _decode(table: Path, image_size: int | None, target: Path | None) -> Raw:
    keys, values = _patches(table)
    labels, hospitals, splits = np.array(values).T
    pile, *_ = decode_members(table.parent, _PATCH, image_size, target)
    official = _official(hospitals, splits)
    return Raw(
        pile.stack(keys),
        labels,
        CLASSES,
        official=official,
        groups=hospitals,
        reading=Reading(path=str(table.parent)),
    )


def _patches(table: Path) -> tuple[list[str], list[list[int]]]:
    """File, and (class, hospital, split), of each patch in metadata.csv."""
    data = table_with_head(table)
    if missing := [name for name in _COLUMNS if name not in data.column_names]:
        raise ValueError(f"metadata.csv has no column {', '.join(missing)}")
    keys, values = [], []
    for i, cells in enumerate(zip(*(data[name].to_pylist() for name in _COLUMNS))):
        # the cells become a path, so they are words
        if not all(map(_WORD.fullmatch, cells)) or not all(map(_DIGIT.fullmatch, cells[4:])):
            raise ValueError(f"row {i + 1} of metadata.csv is {short(cells)}")
        patient, node, x, y = cells[:4]
        name = f"patient_{patient}_node_{node}"
        keys.append(f"patches/{name}/patch_{name}_x_{x}_y_{y}.png")
        values.append(list(map(int, cells[4:])))
    if not keys:
        raise ValueError("metadata.csv has no rows")
    return keys, values


_WORD, _DIGIT = re.compile(r"\w{1,20}"), re.compile(r"[0-9]")


def _official(hospitals: Sequence[int], splits: Sequence[int]) -> dict[str, np.ndarray]:
    """Official sets, as WILDS reads the table."""
    seen = (hospitals != _VAL) & (hospitals != _TEST)
    sets = {"train": seen & (splits == 0), "id_val": seen & (splits == 1)}
    sets |= {"val": hospitals == _VAL, "test": hospitals == _TEST}
    return dict(zip(sets, map(np.flatnonzero, sets.values())))


CAMELYON17 = Source(
    name="camelyon17",
    about="patches of lymph nodes of five hospitals, 96x96; download them from the page of WILDS",
    read=read_camelyon17,
    find=find_camelyon17,
)
