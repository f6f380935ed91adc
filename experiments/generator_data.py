"""Reads a generator's training images: labelled 32x32 bytes, of a dataset or an .npz of JPEGs."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.inputs import described, is_image
from fedjax_ht.lab.generators.embedded import SIZE
from fedjax_ht.lab.generators.npz import in_one_line
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.images import Pile, decode_all
from fedjax_ht.lab.safe.arrays import opened_npz


class Pictures(NamedTuple):
    """Training images.

    Attributes:
      images: uint8 [N, 32, 32, 1 or 3].
      labels: int32 [N], indices into `classes`.
      classes: names of the classes.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def load_pictures(data: str, data_dir: str | None = None, classes: Sequence[str] = ()) -> Pictures:
    """Reads training images.

    Args:
      data: name that `load_dataset` knows, of which the official training set is used if there is
        one; or path of an .npz with "jpeg" (uint8, concatenated JPEG files), "offset" (where each
        starts, and the end), "label" and "wnid" (the classes' names). Images smaller than 32x32 get
        a black frame, larger ones are resized.
      data_dir: folder of the dataset's files.
      classes: names of the classes to keep; all if empty.

    Raises:
      ValueError: there is no such dataset or class, a class is named twice, the set has no images,
        or the images of the .npz are not 32x32. FileNotFoundError: a file is missing.
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


def read_jpegs(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Reads colour images of one size, uint8 [N, H, W, 3].

    Args:
      arrays: "jpeg" uint8, the concatenated files, and "offset" [N + 1], where each starts and the
        last ends; also "label" [N] and "wnid", the classes' names.

    Raises:
      ValueError: an entry is missing, or the sizes differ.
    """
    if missing := {"jpeg", "offset", "label", "wnid"} - set(arrays):
        raise ValueError(
            f"no entry {', '.join(sorted(missing))}; it must hold JPEG files and their labels"
        )
    jpeg, offset = arrays["jpeg"], arrays["offset"]
    is_sound = jpeg.dtype == np.uint8 and offset.dtype.kind in "iu"
    if not is_sound or jpeg.ndim != 1 or offset.ndim != 1:
        raise ValueError(
            f"jpeg is {jpeg.dtype} {jpeg.shape}, offset {offset.dtype} {offset.shape}; they must "
            "be uint8 [bytes] and integers [N + 1]"
        )
    steps = np.concatenate([[0], offset, [len(jpeg)]]).astype(np.int64)
    if len(offset) < 2 or (np.diff(steps) < 0).any():
        raise ValueError(
            f"offset must run from 0 to {len(jpeg)}, the length of jpeg, without going back"
        )

    def encoded():
        for i, (start, end) in enumerate(itertools.pairwise(offset.tolist())):
            yield i, jpeg[start:end].tobytes()

    images = [image for _, image in decode_all(encoded(), None)]
    if len({image.shape[:2] for image in images}) > 1:
        raise ValueError("the JPEG files are of more than one size")
    images = Pile(enumerate(images), None).stack(range(len(images)))
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images
