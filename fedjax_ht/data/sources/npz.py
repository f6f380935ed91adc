"""Any .npz file with samples and labels."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.inputs import CHANNELS, AsStored, channels_first
from fedjax_ht.data.dataset import Dataset, refuse_not_finite
from fedjax_ht.data.files.archive import Origin, reading, user_path
from fedjax_ht.data.files.arrays import opened_npz
from fedjax_ht.data.files.limits import numbered_classes
from fedjax_ht.data.sources.as_stored import as_stored, refuse_image_size, to_groups
from fedjax_ht.data.sources.images import decode_all, resize, stack
from fedjax_ht.data.sources.labels import warn_of_empty_class_0
from fedjax_ht.data.sources.source import Source

_KEYS = (("images", "labels"), ("inputs", "labels"), ("x", "y"))
_SPLITS = ("train", "test")
_ORIGIN = Origin(
    "an .npz of images and labels, inputs and labels, x and y, x_train, y_train, x_test and "
    "y_test, or jpeg, offset, label and wnid",
    "write it with numpy.savez_compressed(path, images=..., labels=...), or inputs=... for what is "
    "no image",
)


class _Found(NamedTuple):
    """Of a file: the key of its samples, they and their labels, and what else it has of them."""

    key: str
    inputs: np.ndarray
    labels: np.ndarray
    official: dict[str, np.ndarray]
    groups: np.ndarray | None = None
    names: list[str] | None = None
    vocabulary: int | None = None


def read_npz(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Samples and labels of an .npz, where PATH is relative to `data_dir` if that is given.

    What they are goes by the key, the type and the axes:

        images               images, or an error
        inputs               as they are
        x, x_train + x_test  uint8                               images
                             float, 4 axes, 1 or 3 channels      images
                             float, 3 axes, all within [-1, 1]   grey images, with a warning
                             float, any other                    as they are
                             other integers, 2 axes              as they are: tokens
                             other integers, any other           an error

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3, uint8 or floats in [0, 1] or [-1,
    1], and are kept as bytes. What is as it is has two axes or more, and `AsStored` for a model.
    Labels are integers [N] from 0. With train and test arrays, these become the official sets; so
    do the samples that "official_test", bool [N], does not and does name, and beside it those of
    "official_val". "vocabulary" is the number of token ids. "group" or "person", integers or text
    [N], is whose a sample is: `Dataset.groups`, text by its place in sorted order. Beside x_train
    these are group_train and group_test. Classes are named by "class_names" or "classes", else by
    number. Images may also be JPEG files, see `read_jpegs`, whose classes have names.
    """
    file = user_path(path, data_dir)
    with reading(file, _ORIGIN):
        with opened_npz(file) as arrays:
            found = _packed(arrays) if "jpeg" in arrays else _select(arrays)
        labels, rule = _to_labels(found.labels), None
        if _is_image(found.key, found.inputs):
            inputs = resize(to_bytes(to_nhwc(found.inputs)), image_size)
        else:
            refuse_image_size(image_size)
            inputs, rule = as_stored(found.key, found.inputs), AsStored()
        class_names = tuple(found.names or numbered_classes(int(labels.max(initial=-1)) + 1))
        warn_of_empty_class_0(file, labels)
        own = {"groups": found.groups, "vocabulary": found.vocabulary}
        return Dataset(f"npz:{path}", inputs, labels, class_names, rule, found.official, **own)


def _is_image(key: str, x: np.ndarray) -> bool:
    """By the table of `read_npz`, where what has an error is refused as an image."""
    if key in ("images", "inputs"):
        return key == "images"
    if x.dtype.kind != "f":
        return x.dtype == np.uint8 or x.ndim != 2
    if x.ndim == 3 and (not x.size or -1 <= x.min() <= x.max() <= 1):
        logging.warning(
            f"{key} is {x.dtype} {x.shape} within -1 to 1: grey images. Call it inputs if it is "
            "none"
        )
        return True
    return x.ndim == 4 and (x.shape[-1] in CHANNELS or channels_first(x.shape))


def _packed(arrays: Mapping[str, np.ndarray]) -> _Found:
    images = read_jpegs(arrays)
    return _Found("images", images, arrays["label"], {}, names=arrays["wnid"].tolist())


def read_jpegs(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Colour images of one size from "jpeg" uint8, the files one after another, and "offset" [N +
    1], where each starts and the last ends; beside them are "label" [N] and "wnid", the classes'
    names. uint8 [N, H, W, 3].

    Raises:
      ValueError: an entry is missing, or the sizes differ.
    """
    if missing := {"jpeg", "offset", "label", "wnid"} - set(arrays):
        raise ValueError(
            f"no entry {', '.join(sorted(missing))}; it must hold JPEG files and their labels"
        )
    jpeg, offset = arrays["jpeg"], arrays["offset"]
    if (
        jpeg.dtype != np.uint8
        or jpeg.ndim != 1
        or offset.dtype.kind not in "iu"
        or offset.ndim != 1
    ):
        raise ValueError(
            f"jpeg is {jpeg.dtype} {jpeg.shape}, offset {offset.dtype} {offset.shape}; see "
            "read_jpegs"
        )
    steps = np.concatenate([[0], offset, [len(jpeg)]]).astype(np.int64)
    if len(offset) < 2 or (np.diff(steps) < 0).any():
        raise ValueError(
            f"offset must run from 0 to {len(jpeg)}, the length of jpeg, without going back"
        )
    files = (
        (i, jpeg[start:end].tobytes())
        for i, (start, end) in enumerate(itertools.pairwise(offset.tolist()))
    )
    images = [image for _, image in decode_all(files, None)]
    if len({image.shape[:2] for image in images}) > 1:
        raise ValueError("the JPEG files are of more than one size")
    images = stack(images)
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images


def to_nhwc(images: np.ndarray) -> np.ndarray:
    """[N, H, W], [N, H, W, C] or [N, C, H, W] to [N, H, W, C]; C is 1 or 3, the last axis if both
    would do."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim == 4 and channels_first(images.shape):
        return images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[-1] in CHANNELS:
        return images
    raise ValueError(
        f"images of shape {images.shape}, not [N, H, W] or [N, H, W, C] or [N, C, H, W] with C 1 "
        "or 3"
    )


def to_bytes(images: np.ndarray) -> np.ndarray:
    """uint8 as it is; floats in [0, 1], or in [-1, 1] if any is negative, scaled to [0, 255] and
    rounded."""
    if images.dtype == np.uint8 or not images.size:
        return images.astype(np.uint8)
    refuse_not_finite("it", images)
    low, high = images.min(), images.max()
    if images.dtype.kind != "f":
        raise ValueError(
            f"{images.dtype} images from {low} to {high}: give them as uint8, from 0 to 255"
        )
    if not -1 <= low <= high <= 1:
        raise ValueError(
            f"{images.dtype} images from {low} to {high}: divide by the maximum, for floats in [0, "
            "1]"
        )
    return np.round((images * 0.5 + 0.5 if low < 0 else images) * 255).astype(np.uint8)


def _select(arrays: Mapping[str, np.ndarray]) -> _Found:
    """By whichever keys the file has."""
    names = next(
        (_texts(name, arrays[name]) for name in ("class_names", "classes") if name in arrays), None
    )
    for key, labels in _KEYS:
        if key in arrays and labels in arrays:
            x, official, owners = (
                arrays[key],
                {},
                next((arrays[k] for k in ("group", "person") if k in arrays), None),
            )
            if "official_test" in arrays:
                official = _official(arrays, len(x))
            break
    else:
        if not all(f"{kind}_{split}" in arrays for kind in "xy" for split in _SPLITS):
            raise ValueError(f"its arrays are {', '.join(arrays) or 'none'}")
        key, labels = "x_train", ""
        counts = [len(arrays[f"y_{split}"]) for split in _SPLITS]
        x = _both(arrays, "x")
        official = {"train": np.arange(counts[0]), "test": np.arange(counts[0], sum(counts))}
        if len(arrays["x_train"]) != counts[0]:
            raise ValueError(f"{len(arrays['x_train'])} training samples for {counts[0]} labels")
        owners = next(
            (_both(arrays, k) for k in ("group", "person") if f"{k}_train" in arrays), None
        )
    groups = None if owners is None else to_groups("group", owners)
    vocabulary = int(arrays["vocabulary"]) if "vocabulary" in arrays else None
    return _Found(
        key,
        x,
        arrays[labels] if labels else _both(arrays, "y"),
        official,
        groups,
        names,
        vocabulary,
    )


def _both(arrays: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    """The training samples' and then the test samples'."""
    return np.concatenate([arrays[f"{key}_{split}"] for split in _SPLITS])


def _official(arrays: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    named = {
        split: arrays[f"official_{split}"]
        for split in ("test", "val")
        if f"official_{split}" in arrays
    }
    for split, mine in named.items():
        if mine.dtype != bool or mine.shape != (count,):
            raise ValueError(f"official_{split} is {mine.dtype} {mine.shape}, not bool ({count},)")
    if np.sum([*named.values()], axis=0).max(initial=0) > 1:
        raise ValueError("official_test and official_val name a sample twice")
    rest = {"train": ~np.any([*named.values()], axis=0)}
    return {split: np.flatnonzero(mine) for split, mine in (rest | named).items()}


def _texts(name: str, values: np.ndarray) -> list[str]:
    if values.dtype.kind != "U" or values.ndim != 1:
        raise ValueError(f"{name} is {values.dtype} {values.shape}, not text [classes]")
    return values.tolist()


def _to_labels(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "iu" or labels.shape not in ((labels.size,), (labels.size, 1)):
        raise ValueError(f"labels are {labels.dtype} {labels.shape}, not integers [N]")
    return labels.ravel().astype(np.int64)


NPZ = Source(
    name="npz",
    argument="PATH",
    about="it is a file of your own, and nothing is to be downloaded",
    read=read_npz,
)
