"""MNIST and Fashion-MNIST in their publishers' idx files, gzipped or not, and the test images of
Fashion-MNIST that the package carries.

The format is described on the MNIST page (LeCun, Cortes and Burges): two zero bytes, a type code (8
is uint8), the number of dimensions, the dimensions as big-endian uint32, the values.
"""

import functools
import math
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.source import (
    IN_PACKAGE,
    SHIPPED,
    Moments,
    Raw,
    ReadOptions,
    Source,
    check_sum,
    one_after_another,
)
from fedjax_ht.lab.safe.archive import Origin, reading
from fedjax_ht.lab.safe.bounded import read_whole

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CLASSES = {"mnist": tuple("0123456789"), "fashion_mnist": FASHION_CLASSES}
_FILES = {  # file -> dimensions of its array
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}


def _origins(page: str, *folders: str) -> tuple[Origin, ...]:
    """The four files; two sets have the same names, so a folder of the set's name comes first."""
    how = f"download it from the dataset's page ({page})"
    places = tuple(f"{folder}/{raw}" for folder in (*folders, ".") for raw in (".", "raw"))
    return tuple(
        Origin(f"{file} or {file}.gz", how, names=(file, f"{file}.gz"), folders=places)
        for file in _FILES
    )


_ORIGINS = {
    "mnist": _origins("LeCun, MNIST", "mnist", "MNIST"),
    "fashion_mnist": _origins("Zalando Research, Fashion-MNIST", "fashion_mnist", "FashionMNIST"),
}


def read_idx(name: str, *files: Path, options: ReadOptions) -> Raw:
    """`name` is "mnist" or "fashion_mnist"; official sets train and test, 28x28x1."""
    parts, warnings = [], ()
    for path, origin, (file, ndim) in zip(files, _ORIGINS[name], _FILES.items()):
        with reading(path, origin):
            content = read_whole(path)
            parts.append(_parse(content, ndim))
            if ndim == 1 and len(parts[-1]) != len(parts[-2]):
                raise ValueError(f"{len(parts[-1])} labels for {len(parts[-2])} images")
            # gzip writes one content in many ways, so the content is compared
            warnings += check_sum(MD5[name], path.with_name(file), content)
    images = np.concatenate(parts[::2])[..., None]
    official = one_after_another(zip(("train", "test"), map(len, parts[::2])))
    return Raw(
        images,
        np.concatenate(parts[1::2]),
        _CLASSES[name],
        official=official,
        reading=Reading(path=str(files[0].parent), warnings=warnings),
    )


def _parse(content: bytes, ndim: int) -> np.ndarray:
    """The uint8 array of `ndim` dimensions in an idx file."""
    magic = bytes((0, 0, 8, ndim))
    if content[:4] != magic:
        raise ValueError(f"starts with {content[:4].hex()}, not {magic.hex()}")
    shape = np.frombuffer(content, ">u4", count=ndim, offset=4).tolist()
    start = 4 + 4 * ndim
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{len(content) - start} bytes of values, but its header says {math.prod(shape)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


MD5 = {  # of the .gz files, and of what they hold
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
MNIST_MOMENTS = Moments(mean=(0.1307,), std=(0.3081,))
MNIST = Source(
    name="mnist",
    about="70,000 digits, 28x28 grey, 10 classes",
    read=functools.partial(read_idx, "mnist"),
    origins=_ORIGINS["mnist"],
    home="https://ossci-datasets.s3.amazonaws.com/mnist/",  # a mirror, which torchvision uses too
    files={
        "train-images-idx3-ubyte.gz": 9_912_422,
        "train-labels-idx1-ubyte.gz": 28_881,
        "t10k-images-idx3-ubyte.gz": 1_648_877,
        "t10k-labels-idx1-ubyte.gz": 4_542,
    },
    md5=MD5["mnist"],
    moments=MNIST_MOMENTS,
)
FASHION_MNIST = Source(
    name="fashion_mnist",
    about="70,000 pieces of clothing, 28x28 grey, 10 classes",
    read=functools.partial(read_idx, "fashion_mnist"),
    origins=_ORIGINS["fashion_mnist"],
    home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files={
        "train-images-idx3-ubyte.gz": 26_421_880,
        "train-labels-idx1-ubyte.gz": 29_515,
        "t10k-images-idx3-ubyte.gz": 4_422_102,
        "t10k-labels-idx1-ubyte.gz": 5_148,
    },
    md5=MD5["fashion_mnist"],
    moments=MNIST_MOMENTS,  # DFRD's released code has MNIST's
)


def read_fashion_mnist_10k(options: ReadOptions) -> Raw:
    """The 10,000 test images of Fashion-MNIST, 28x28x1 (Xiao et al. 2017, MIT licence).

    It has no official sets, since all of it is one.
    """
    with np.load(SHIPPED / "fashion_mnist_10k.npz") as arrays:
        return Raw(arrays["images"], arrays["labels"], FASHION_CLASSES)


FASHION_MNIST_10K = Source(
    name="fashion_mnist_10k",
    about=IN_PACKAGE,
    read=read_fashion_mnist_10k,
    moments=MNIST_MOMENTS,
)
