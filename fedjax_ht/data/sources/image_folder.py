"""Any folder of images with one folder per class."""

import functools
import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files.archive import Origin, reading, user_path
from fedjax_ht.data.sources.cache import cached
from fedjax_ht.data.sources.images import decode_members
from fedjax_ht.data.sources.source import Source

_ORIGIN = Origin(
    "CLASS/*.png (or .jpg, .jpeg, .bmp, .ppm, .pgm, .webp, .tif), or the same below train/ and "
    "test/",
    "put each class in a folder of its own",
)
_FILE = r"[^/]+/.+\.(?i:png|jpe?g|bmp|p[gp]m|webp|tiff?))$"


def read_folder(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Reads PATH/CLASS/... or PATH/SPLIT/CLASS/..., PATH relative to `data_dir` if that is given.

    Splits are train and test, or either with val; they become official sets. Classes are sorted by
    name. Images keep their size, which must be one size then, and are grey only if all are.
    """
    root = user_path(path, data_dir)
    with reading(root, _ORIGIN):
        if not root.is_dir():
            raise FileNotFoundError("no such folder")
        build = functools.partial(_decode, path, root, image_size)
        return cached(f"folder:{path}", image_size, root, (root,), build)


def _decode(path: str, root: Path, image_size: int | None, target: Path | None) -> Dataset:
    splits = [split for split in ("train", "val", "test") if (root / split).is_dir()]
    if len(splits) < 2:  # one folder may well be a class of this name
        splits = []
    below = f"(?:{'|'.join(splits)})/" if splits else ""
    pattern = re.compile(f"^(?P<image>{below}{_FILE}")
    pile, _ = decode_members(root, pattern, image_size, target)
    keys = list(pile.places)
    folders = [key.split("/") for key in keys]  # [SPLIT,] CLASS, ...
    of_class = [names[bool(splits)] for names in folders]
    of_split = np.array([names[0] for names in folders])
    classes = sorted(set(of_class))
    return Dataset(
        f"folder:{path}",
        pile.stack(keys),
        np.searchsorted(classes, of_class),
        tuple(classes),
        official={split: np.flatnonzero(of_split == split) for split in splits},
    )


FOLDER = Source(
    name="folder",
    argument="PATH",
    about="it is a folder of your own, and nothing is to be downloaded",
    read=read_folder,
)
