"""Reads images that a generator is trained on: 32x32 bytes with labels, of a known dataset or of an
.npz of JPEG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.inputs import described, is_image
from fedjax_ht.lab.generators.embedded import SIZE
from fedjax_ht.lab.generators.npz import in_one_line
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.npz import read_jpegs
from fedjax_ht.lab.safe.arrays import opened_npz


class Pictures(NamedTuple):
    """Training images.

    Attributes:
      images: uint8 [N, 32, 32, 1 or 3].
      labels: int32 [N], positions in `classes`.
      classes: their names.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def load_pictures(data: str, data_dir: str | None = None, classes: Sequence[str] = ()) -> Pictures:
    """Reads training images.

    Args:
      data: a name that `load_dataset` knows, whose official training set is taken if it has one; or
        the path of an .npz with "jpeg" (uint8, JPEG files one after another), "offset" (where each
        starts, and the end), "label" and "wnid" (the classes' names). Images smaller than 32x32 get
        a black frame, larger ones are resized.
      data_dir: where the dataset's files are.
      classes: names of the classes to keep; all if empty.

    Raises:
      ValueError: there is no such dataset or class, a class is named twice, the set is none of
        images, or the images of the .npz are not 32x32. FileNotFoundError: a file is missing.
    """
    # "npz:FILE" is a dataset; a plain path is a file of JPEGs.
    if data.endswith(".npz") and ":" not in data:
        pictures = _read_jpegs(Path(data))
    else:
        pictures = _read_dataset(data, data_dir)
    unknown = sorted(set(classes) - set(pictures.classes))
    if unknown:
        raise ValueError(
            f"{data} has no class {unknown[0]!r}; it has {', '.join(pictures.classes[:20])}, ..."
        )
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes are {', '.join(classes)}; each must be named once")
    if not classes:
        return pictures
    position = {pictures.classes.index(name): i for i, name in enumerate(classes)}
    kept = np.flatnonzero(np.isin(pictures.labels, list(position)))
    labels = np.array([position[label] for label in pictures.labels[kept].tolist()], np.int32)
    return Pictures(pictures.images[kept], labels, tuple(classes))


def _read_dataset(name: str, data_dir: str | None) -> Pictures:
    dataset = load_dataset(name, data_dir)
    if not is_image(dataset.input_shape):
        sample = described(dataset.input_shape)
        raise ValueError(f"a generator is trained on images; a sample of {name} is {sample}")
    if max(dataset.input_shape[:2]) > SIZE:
        dataset = load_dataset(name, data_dir, SIZE)
    train = dataset.official.get("train", np.arange(len(dataset.inputs)))
    frame = [(0, 0), (0, 0), (0, 0), (0, 0)]
    for axis, side in enumerate(dataset.input_shape[:2], 1):
        before = (SIZE - side) // 2
        frame[axis] = before, SIZE - side - before
    images = np.pad(dataset.inputs[train], frame)
    return Pictures(images, dataset.labels[train], dataset.class_names)


def _read_jpegs(path: Path) -> Pictures:
    if not path.is_file():
        raise FileNotFoundError(f"no images at {path}")
    with in_one_line(str(path)), opened_npz(path) as file:
        images, labels, names = read_jpegs(file), file["label"], file["wnid"]
    if images.shape[1:] != (SIZE, SIZE, 3):
        raise ValueError(f"{path}: images must be {SIZE}x{SIZE}")
    return Pictures(images, labels.astype(np.int32), tuple(map(str, names)))
