"""SVHN, the cropped digits (Netzer et al. 2011), in the publisher's .mat files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Moments, Source
from fedjax_ht.lab.safe.archive import Origin, reading, search, take
from fedjax_ht.lab.safe.mat import load_mat

_FILES = ("train_32x32.mat", "test_32x32.mat")
_ORIGIN = Origin(
    " and ".join(_FILES),
    "download it from the dataset's page (Netzer et al., SVHN format 2, cropped digits)",
)


def find_svhn(data_dir: Path | None) -> Iterator[Path]:
    """Yields the two files, each looked for when it is asked for; see `archive.search`."""
    for file in _FILES:
        yield search("svhn", data_dir, ("svhn", "SVHN", ""), (file,), _ORIGIN)


def read_svhn(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Official sets train and test, 32x32x3; the publisher's label 10, or 0, is the digit 0."""
    parts, folder = [], ""
    for path in find_svhn(data_dir):
        parts.append(_read_split(path))
        folder = str(path.parent)
    images, labels, warnings = zip(*parts)
    return Raw(
        np.ascontiguousarray(np.concatenate(images)),
        np.concatenate(labels),
        tuple("0123456789"),
        official=one_after_another(zip(("train", "test"), map(len, labels))),
        reading=Reading(path=folder, warnings=sum(warnings, ())),
    )


def _read_split(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images, labels, and lines on values that look wrong."""
    with reading(path, _ORIGIN):
        warnings = check_sum(MD5, path)
        images, labels = take(load_mat("svhn", path), ("X", "y"), "arrays")
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, labels.size):
            raise ValueError(
                f"X is {images.dtype} {images.shape} for {labels.size} labels, "
                "not uint8 [32, 32, 3, n]"
            )
        unknown = labels[~np.isin(labels, np.arange(11))]
        if unknown.size:
            rule = "labels are whole numbers from 1 to 10, and 10 is the digit 0"
            raise ValueError(f"y has the label {unknown[0]:g}; {rule}")
        return images.transpose(3, 0, 1, 2), labels.ravel().astype(np.int64) % 10, warnings


MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
SVHN = Source(
    name="svhn",
    about="99,289 house numbers, 32x32, 10 classes",
    read=read_svhn,
    find=find_svhn,
    home="http://ufldl.stanford.edu/housenumbers/",
    files={"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384},
    md5=MD5,
    moments=Moments(mean=(0.5,), std=(0.5,)),
)
