"""The sets that come inside the package, so that examples and tests run without a download."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.lab.readers.har import CLASSES
from fedjax_ht.lab.readers.idx import FASHION_CLASSES, MNIST_MOMENTS
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source

# files of the package itself, where others are read by `data.files`
_FOLDER = Path(__file__).parent / "shipped"


def read_fashion_mnist_10k(data_dir: Path | None, options: ReadOptions) -> Raw:
    """The 10,000 test images of Fashion-MNIST, 28x28x1 (Xiao et al. 2017, MIT licence).

    It has no official sets, since all of it is one; `data_dir` is not looked at.
    """
    with np.load(_FOLDER / "fashion_mnist_10k.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return Raw(images, labels, FASHION_CLASSES)


def read_har(files: Sequence[str], data_dir: Path | None, options: ReadOptions) -> Raw:
    """Windows of persons of UCI HAR (Anguita et al. 2013, CC BY 4.0).

    About a third of theirs, as of set "har" but float16 [128, 9]; groups are the persons. It has no
    official sets; partition "natural" splits each person's windows. LICENSE-har_10persons.txt says
    how it was selected, and what about it is not quite sure. `data_dir` is not looked at.
    """
    parts = []
    for file in files:
        with np.load(_FOLDER / file) as arrays:
            parts.append((arrays["windows"], arrays["labels"], arrays["persons"]))
    windows, labels, persons = map(np.concatenate, zip(*parts))
    return Raw(windows, labels, CLASSES, groups=persons)


def _har(name: str, *files: str) -> Source:
    return Source(name, _ABOUT, functools.partial(read_har, files))


_ABOUT = "it is part of the package, and nothing is to be downloaded"
FASHION_MNIST_10K = Source(
    name="fashion_mnist_10k", about=_ABOUT, read=read_fashion_mnist_10k, moments=MNIST_MOMENTS
)
HAR_10PERSONS = _har("har_10persons", "har_10persons.npz")  # 1 to 10: 1,039 windows
HAR_30PERSONS = _har("har_30persons", "har_10persons.npz", "har_20persons.npz")  # 3,350 windows
