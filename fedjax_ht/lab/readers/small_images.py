"""Sets of small images as their publishers give them.

MNIST and Fashion-MNIST are idx files, gzipped or not; the package carries the test images of the
latter. CIFAR-10 and CIFAR-100 are read in the python or binary version, as an archive or extracted.
Of a folder that has both, the python version is read, as in torchvision and PFLlib: nobody promises
that the binary version lists the samples in the same order, and every split depends on the order.

The idx format is described on the MNIST page (LeCun, Cortes and Burges): two zero bytes, a type
code (8 is uint8), the number of dimensions, these as big-endian uint32, and the values.
"""

import functools
import io
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.source import (
    CIFAR100_MOMENTS,
    IN_PACKAGE,
    SHIPPED,
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
    parts = []
    for path, origin, ndim in zip(files, _ORIGINS[name], _FILES.values()):
        with reading(path, origin):
            content = read_whole(path)
            parts.append(_parse_idx(content, ndim))
            if ndim == 1 and len(parts[-1]) != len(parts[-2]):
                raise ValueError(f"{len(parts[-1])} labels for {len(parts[-2])} images")
    images = np.concatenate(parts[::2])[..., None]
    official = one_after_another(zip(("train", "test"), map(len, parts[::2])))
    return Raw(
        images,
        np.concatenate(parts[1::2]),
        _CLASSES[name],
        official=official,
        reading=Reading(path=str(files[0].parent)),
    )


def _parse_idx(content: bytes, ndim: int) -> np.ndarray:
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


IDX_MD5 = {  # of the .gz files, and of what they hold
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
    md5=IDX_MD5["mnist"],
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
    md5=IDX_MD5["fashion_mnist"],
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


_PIXELS = 3 * 32 * 32  # bytes of an image, plane by plane


class _Layout(NamedTuple):
    """Names in the two versions of a set.

    Attributes:
      stem: start of the archives' names.
      folders: folders that the archives extract to, of the python and the binary version.
      train: names of the training batches, without the binary version's ".bin".
      test: name of the test batch, without ".bin".
      meta: files of the class names, of the python and the binary version.
      names_key: key of the class names in the python version.
      label_bytes: bytes of labels in a binary record; the last one is the class.
    """

    stem: str
    folders: tuple[str, str]
    train: tuple[str, ...]
    test: str
    meta: tuple[str, str]
    names_key: str
    label_bytes: int


_LAYOUTS = {
    "cifar10": _Layout(
        stem="cifar-10",
        folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        meta=("batches.meta", "batches.meta.txt"),
        names_key="label_names",
        label_bytes=1,
    ),
    "cifar100": _Layout(
        stem="cifar-100",
        folders=("cifar-100-python", "cifar-100-binary"),
        train=("train",),
        test="test",
        meta=("meta", "fine_label_names.txt"),
        names_key="fine_label_names",
        label_bytes=2,
    ),
}


def _cifar_origin(name: str) -> Origin:
    """The archive or the extracted folder."""
    layout, stem = _LAYOUTS[name], _LAYOUTS[name].stem
    kinds = [(version, end) for version in ("python", "binary") for end in ("tar.gz", "tar")]
    return Origin(
        f"{stem}-python.tar.gz, {stem}-binary.tar.gz or the extracted folder of one",
        f"download it from the dataset's page (Krizhevsky, {stem.upper()} python version)",
        names=(*layout.folders, *(f"{stem}-{version}.{end}" for version, end in kinds)),
        markers=layout.meta,
    )


def read_cifar(name: str, source: Path, options: ReadOptions) -> Raw:
    """Reads CIFAR-10 or CIFAR-100; official sets train and test, 32x32x3.

    `name` is "cifar10" or "cifar100", which has its 100 fine classes.
    """
    layout = _LAYOUTS[name]
    class_names, batches = _parse_cifar(layout, _contents(layout, source))
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    test = len(batches[-1][1])  # the last batch is the test set
    official = one_after_another([("train", len(images) - test), ("test", test)])
    return Raw(
        np.ascontiguousarray(images),
        labels,
        class_names,
        official=official,
        reading=Reading(path=str(source)),
    )


def _contents(layout: _Layout, source: Path) -> dict[str, bytes]:
    """File name -> content, of the batches and class names in an archive or a folder."""
    batches = "|".join(map(re.escape, (*layout.train, layout.test)))
    meta = "|".join(map(re.escape, layout.meta))
    pattern = re.compile(rf"^(?:\./)?(?:[^/]+/)?(?P<file>(?:{batches})(?:\.bin)?|{meta})$")
    return {match["file"]: content for match, content in members(source, pattern)}


def _parse_cifar(
    layout: _Layout, contents: dict[str, bytes]
) -> tuple[tuple[str, ...], list[tuple[np.ndarray, np.ndarray]]]:
    """Class names, and (images, labels) of each batch, those of the test set last."""
    python_meta, binary_meta = layout.meta
    names = (*layout.train, layout.test)
    if binary_meta in contents:
        files = [binary_meta, *(f"{name}.bin" for name in names)]
        meta, *batches = take(contents, files, "files")
        class_names = tuple(meta.decode().split())
        return class_names, [_parse_binary(batch, layout.label_bytes) for batch in batches]
    meta, *batches = take(contents, [python_meta, *names], "files")
    (class_names,) = take(_load_dict(meta), (layout.names_key,), "entries")
    if not all(isinstance(name, bytes | str) for name in class_names):
        raise ValueError(f"{layout.names_key} holds something else than text")
    texts = [name.decode() if isinstance(name, bytes) else name for name in class_names]
    return tuple(texts), [_parse_python(batch) for batch in batches]


def _parse_binary(content: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [n, 3072] and labels [n] of records of label bytes and pixels."""
    size = label_bytes + _PIXELS
    if not content or len(content) % size:
        raise ValueError(f"a batch has {len(content)} bytes, not a multiple of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, label_bytes:], records[:, label_bytes - 1]


def _parse_python(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images [n, 3072] and integer labels [n] of a pickled batch."""
    batch = _load_dict(content)
    images, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    # the labels' types are looked at before numpy sees them, which would walk lists in lists
    if isinstance(images, np.ndarray) and isinstance(labels, list):
        sound = images.dtype == np.uint8 and images.shape == (len(labels), _PIXELS)
        if sound and all(isinstance(label, int | np.integer) for label in labels):
            return images, np.asarray(labels, np.int64)
    raise ValueError(f"a batch is not a dict of uint8 data [n, {_PIXELS}] and n labels")


def _load_dict(content: bytes) -> dict:
    """A pickled dict with its keys as text; Python 3 makes bytes of keys that Python 2 wrote."""
    value = load_pickle(io.BytesIO(content))
    if not isinstance(value, dict):
        raise ValueError(f"a pickle holds a {type(value).__name__}, not a dict")
    entries = {}
    for key, entry in value.items():
        entries[key.decode("latin1") if isinstance(key, bytes) else key] = entry
    return entries


CIFAR_MD5 = {  # of the archives, and of what they extract to
    "cifar10": {
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
}
CIFAR10 = Source(
    name="cifar10",
    about="60,000 photographs, 32x32, 10 classes",
    read=functools.partial(read_cifar, "cifar10"),
    origins=(_cifar_origin("cifar10"),),
    home="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-10-python.tar.gz": 170_498_071},
    md5=CIFAR_MD5["cifar10"],
    moments=Moments(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)),
)
CIFAR100 = Source(
    name="cifar100",
    about="60,000 photographs, 32x32, 100 classes",
    read=functools.partial(read_cifar, "cifar100"),
    origins=(_cifar_origin("cifar100"),),
    home="https://www.cs.toronto.edu/~kriz/",
    files={"cifar-100-python.tar.gz": 169_001_437},
    md5=CIFAR_MD5["cifar100"],
    moments=CIFAR100_MOMENTS,
)
