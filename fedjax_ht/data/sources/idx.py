"""MNIST and Fashion-MNIST in their publishers' idx files, gzipped or not.

The format is described on the MNIST page (LeCun, Cortes and Burges): two zero bytes, a type code (8
is uint8), the number of dimensions, the dimensions as big-endian uint32, the values.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files.archive import Origin, reading, search
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.checksums import check_sum
from fedjax_ht.data.sources.images import resize

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CLASSES = {"mnist": tuple("0123456789"), "fashion_mnist": FASHION_CLASSES}
_FOLDERS = {"mnist": ("mnist", "MNIST"), "fashion_mnist": ("fashion_mnist", "FashionMNIST")}
_FILES = {  # file -> dimensions of its array
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}
_PAGES = {"mnist": "LeCun, MNIST", "fashion_mnist": "Zalando Research, Fashion-MNIST"}


def _origin(name: str, file: str) -> Origin:
    return Origin(f"{file} or {file}.gz", f"download it from the dataset's page ({_PAGES[name]})")


def find_idx(name: str, data_dir: Path | None) -> Iterator[Path]:
    """The four files, each looked for when it is asked for; see `archive.search`."""
    folders = [f"{folder}/{raw}" for folder in (*_FOLDERS[name], ".") for raw in (".", "raw")]
    return (
        search(name, data_dir, folders, (file, f"{file}.gz"), _origin(name, file))
        for file in _FILES
    )


def read_idx(name: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """`name` is "mnist" or "fashion_mnist"; official sets train and test, 28x28x1.

    The two sets have the same file names, so a folder of the set's own is looked at before
    `data_dir` itself.
    """
    parts = []
    for path, (file, ndim) in zip(find_idx(name, data_dir), _FILES.items()):
        with reading(path, _origin(name, file)):
            content = read_whole(path)
            parts.append(_parse(content, ndim))
            if ndim == 1 and len(parts[-1]) != len(parts[-2]):
                raise ValueError(f"{len(parts[-1])} labels for {len(parts[-2])} images")
            check_sum(name, path.with_name(file), content)  # gzip writes one content in many ways
    images = resize(np.concatenate(parts[::2])[..., None], image_size)
    train = len(parts[0])
    official = {"train": np.arange(train), "test": np.arange(train, len(images))}
    return Dataset(name, images, np.concatenate(parts[1::2]), _CLASSES[name], official=official)


def _parse(content: bytes, ndim: int) -> np.ndarray:
    """The uint8 array of `ndim` dimensions in an idx file."""
    if content[:4] != bytes((0, 0, 8, ndim)):
        raise ValueError(f"starts with {content[:4].hex()}, not {bytes((0, 0, 8, ndim)).hex()}")
    shape = np.frombuffer(content, ">u4", count=ndim, offset=4).tolist()
    start = 4 + 4 * ndim
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{len(content) - start} bytes of values, but its header says {math.prod(shape)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
