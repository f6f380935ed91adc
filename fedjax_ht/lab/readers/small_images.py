"""Reads sets of small images in their publishers' formats.

MNIST and Fashion-MNIST are idx files, gzipped or not; the package includes the latter's test
images. CIFAR-10 and CIFAR-100 are read in the python version, as in torchvision and PFLlib, packed
or extracted.

The idx format is described on the MNIST page (LeCun, Cortes and Burges): two zero bytes, a type
code (8 is uint8), the number of dimensions, these as big-endian uint32, and the values.
"""

import functools
import io
import math
import re
from pathlib import Path

import numpy as np

from fedjax_ht.lab.readers.source import (
    CIFAR100_MOMENTS,
    IN_PACKAGE,
    SHIPPED,
    File,
    Moments,
    Raw,
    ReadOptions,
    Source,
    one_after_another,
)
from fedjax_ht.lab.safe.bounded import Origin, members, read_whole, reading, take
from fedjax_ht.lab.safe.safe_pickle import load_pickle

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
    """Returns the origins of the four files; the set's folder first, as two sets share names."""
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
    """Reads "mnist" or "fashion_mnist" (`name`), 28x28x1; official sets train and test."""
    parts = []
    for path, origin, ndim in zip(files, _ORIGINS[name], _FILES.values()):
        with reading(path, origin):
            content = read_whole(path)
            parts.append(_parse_idx(content, ndim))
            if ndim == 1 and len(parts[-1]) != len(parts[-2]):
                raise ValueError(f"{len(parts[-1])} labels for {len(parts[-2])} images")
    images = np.concatenate(parts[::2])[..., None]
    official = one_after_another(zip(("train", "test"), map(len, parts[::2])))
    return Raw(images, np.concatenate(parts[1::2]), _CLASSES[name], official=official)


def _parse_idx(content: bytes, ndim: int) -> np.ndarray:
    """Returns the uint8 array of `ndim` dimensions in an idx file."""
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


MNIST_MOMENTS = Moments(mean=(0.1307,), std=(0.3081,))
MNIST = Source(
    name="mnist",
    about="70,000 digits, 28x28 grey, 10 classes",
    read=functools.partial(read_idx, "mnist"),
    origins=_ORIGINS["mnist"],
    home="https://ossci-datasets.s3.amazonaws.com/mnist/",  # a mirror that torchvision uses
    files={
        "train-images-idx3-ubyte.gz": File(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte.gz": File(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte.gz": File(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte.gz": File(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    },
    moments=MNIST_MOMENTS,
)
FASHION_MNIST = Source(
    name="fashion_mnist",
    about="70,000 pieces of clothing, 28x28 grey, 10 classes",
    read=functools.partial(read_idx, "fashion_mnist"),
    origins=_ORIGINS["fashion_mnist"],
    home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files={
        "train-images-idx3-ubyte.gz": File(26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        "train-labels-idx1-ubyte.gz": File(29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        "t10k-images-idx3-ubyte.gz": File(4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        "t10k-labels-idx1-ubyte.gz": File(5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    },
    moments=MNIST_MOMENTS,  # MNIST's, as in DFRD's released code
)


def read_fashion_mnist_10k(options: ReadOptions) -> Raw:
    """Reads the 10,000 test images of Fashion-MNIST, 28x28x1 (Xiao et al. 2017, MIT licence).

    There are no official sets, since all samples come from one.
    """
    with np.load(SHIPPED / "fashion_mnist_10k.npz") as arrays:
        return Raw(arrays["images"], arrays["labels"], FASHION_CLASSES)


FASHION_MNIST_10K = Source(
    name="fashion_mnist_10k",
    about=IN_PACKAGE,
    read=read_fashion_mnist_10k,
    moments=MNIST_MOMENTS,
)


_PIXELS = 3 * 32 * 32  # bytes of an image, plane by plane


_CIFAR = {  # name of a set -> its archive, the folder in it, the batches (test last) and names
    "cifar10": (
        "cifar-10-python",
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    ),
    "cifar100": ("cifar-100-python", "cifar-100-python", ("train", "test", "meta")),
}


def _cifar_origin(name: str) -> Origin:
    """Returns the origin: the archive or the extracted folder."""
    archive, folder, files = _CIFAR[name]
    return Origin(
        f"{archive}.tar.gz or its extracted folder",
        "download it from the dataset's page (Krizhevsky, python version)",
        names=(folder, f"{archive}.tar.gz", f"{archive}.tar"),
        markers=files[-1:],
    )


def read_cifar(name: str, source: Path, options: ReadOptions) -> Raw:
    """Reads CIFAR-10 or CIFAR-100; official sets train and test, 32x32x3.

    `name` is "cifar10" or "cifar100" (its 100 fine classes).
    """
    files = _CIFAR[name][-1]
    pattern = re.compile(rf"^(?:\./)?(?:[^/]+/)?(?P<file>{'|'.join(map(re.escape, files))})$")
    contents = {match["file"]: content for match, content in members(source, pattern)}
    *batches, meta = take(contents, files, "files")
    images, labels = zip(*map(_parse_batch, batches))
    counts = list(map(len, labels))
    return Raw(
        np.ascontiguousarray(np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
        np.concatenate(labels),
        _class_names(meta),
        official=one_after_another([("train", sum(counts[:-1])), ("test", counts[-1])]),
    )


def _class_names(content: bytes) -> tuple[str, ...]:
    entries = _load_dict(content)
    names = entries.get("fine_label_names", entries.get("label_names"))
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise ValueError("the file of class names has no list of them")
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)


def _parse_batch(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 images [n, 3072] and integer labels [n] of a pickled batch."""
    batch = _load_dict(content)
    images, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    # check the labels' types before NumPy, which would walk nested lists
    if isinstance(images, np.ndarray) and isinstance(labels, list):
        sound = images.dtype == np.uint8 and images.shape == (len(labels), _PIXELS)
        if sound and all(isinstance(label, int | np.integer) for label in labels):
            return images, np.asarray(labels, np.int64)
    raise ValueError(f"a batch is not a dict of uint8 data [n, {_PIXELS}] and n labels")


def _load_dict(content: bytes) -> dict:
    """Returns a pickled dict with str keys; Python 3 reads keys written by Python 2 as bytes."""
    value = load_pickle(io.BytesIO(content))
    if not isinstance(value, dict):
        raise ValueError(f"a pickle contains a {type(value).__name__}, not a dict")
    entries = {}
    for key, entry in value.items():
        entries[key.decode("latin1") if isinstance(key, bytes) else key] = entry
    return entries


CIFAR10 = Source(
    name="cifar10",
    about="60,000 photographs, 32x32, 10 classes",
    read=functools.partial(read_cifar, "cifar10"),
    origins=(_cifar_origin("cifar10"),),
    home="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-10-python.tar.gz": File(170_498_071, "c58f30108f718f92721af3b95e74349a")},
    moments=Moments(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)),
)
CIFAR100 = Source(
    name="cifar100",
    about="60,000 photographs, 32x32, 100 classes",
    read=functools.partial(read_cifar, "cifar100"),
    origins=(_cifar_origin("cifar100"),),
    home="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-100-python.tar.gz": File(169_001_437, "eb9058c3a382ffc7106e4002c42a8d85")},
    moments=CIFAR100_MOMENTS,
)
