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
_SPLITS, _GROUPS = ("train", "test"), ("group", "person")
_ORIGIN = Origin(
    "an .npz of images and labels, inputs and labels, x and y, x_train, y_train, x_test and "
    "y_test, or jpeg, offset, label and wnid",
    "write it with numpy.savez_compressed(path, images=..., labels=...), or inputs=... for what is "
    "no image",
)


class _Arrays(NamedTuple):
    """The arrays of a file that a set is made of.

    Attributes:
      key: name of the samples' array.
      inputs: the samples [N, ...].
      labels: [N].
      official: name of a set -> indices of its samples.
      groups: int32 [N], or None.
      names: of the classes; None for numbers.
      vocabulary: number of token ids, or None.
    """

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
            select = _packed if "jpeg" in arrays else _select
            content = select(arrays)
        labels, rule = _to_labels(content.labels), None
        if _is_image(content.key, content.inputs):
            inputs = resize(to_bytes(to_nhwc(content.inputs)), image_size)
        else:
            refuse_image_size(image_size)
            inputs, rule = as_stored(content.key, content.inputs), AsStored()
        class_names = tuple(content.names or numbered_classes(int(labels.max(initial=-1)) + 1))
        warn_of_empty_class_0(file, labels)
        return Dataset(
            name=f"npz:{path}",
            inputs=inputs,
            labels=labels,
            class_names=class_names,
            preprocess=rule,
            official=content.official,
            groups=content.groups,
            vocabulary=content.vocabulary,
        )


def _is_image(key: str, x: np.ndarray) -> bool:
    """Returns whether samples are images, by the table of `read_npz`.

    Arrays for which the table has an error are images here, and refused as such.
    """
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


def _packed(arrays: Mapping[str, np.ndarray]) -> _Arrays:
    """The set of a file of JPEG files."""
    return _Arrays(
        key="images",
        inputs=read_jpegs(arrays),
        labels=arrays["label"],
        official={},
        names=arrays["wnid"].tolist(),
    )


def read_jpegs(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Colour images of one size, uint8 [N, H, W, 3].

    Args:
      arrays: "jpeg" uint8, the files one after another, and "offset" [N + 1], where each starts and
        the last ends; beside them are "label" [N] and "wnid", the classes' names.

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
    images = stack(images)
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images


def to_nhwc(images: np.ndarray) -> np.ndarray:
    """Images [N, H, W], [N, H, W, C] or [N, C, H, W] to [N, H, W, C].

    C is 1 or 3, the last axis if both would do.
    """
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
    """Images as bytes: uint8 as it is, floats scaled to [0, 255] and rounded.

    Floats are in [0, 1], or in [-1, 1] if any is negative.
    """
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
    if low < 0:
        images = images * 0.5 + 0.5
    return np.round(images * 255).astype(np.uint8)


def _select(arrays: Mapping[str, np.ndarray]) -> _Arrays:
    """The set of a file, by the names of its arrays."""
    for key, labels in _KEYS:
        if key in arrays and labels in arrays:
            content = _whole(arrays, key, labels)
            break
    else:
        content = _split(arrays)
    for name in ("class_names", "classes"):
        if name in arrays:
            content = content._replace(names=_texts(name, arrays[name]))
            break
    if content.groups is not None:
        content = content._replace(groups=to_groups("group", content.groups))
    if "vocabulary" in arrays:
        content = content._replace(vocabulary=int(arrays["vocabulary"]))
    return content


def _whole(arrays: Mapping[str, np.ndarray], key: str, labels: str) -> _Arrays:
    """The set of one array of samples; `groups` is as stored."""
    inputs, official = arrays[key], {}
    if "official_test" in arrays:
        official = _official(arrays, len(inputs))
    groups = next((arrays[name] for name in _GROUPS if name in arrays), None)
    return _Arrays(key=key, inputs=inputs, labels=arrays[labels], official=official, groups=groups)


def _split(arrays: Mapping[str, np.ndarray]) -> _Arrays:
    """The set of training and test arrays; `groups` is as stored."""
    needed = [f"{kind}_{split}" for kind in "xy" for split in _SPLITS]
    if not all(name in arrays for name in needed):
        raise ValueError(f"its arrays are {', '.join(arrays) or 'none'}")
    samples, train = len(arrays["x_train"]), len(arrays["y_train"])
    if samples != train:
        raise ValueError(f"{samples} training samples for {train} labels")
    labels = _both(arrays, "y")
    groups = next((_both(arrays, name) for name in _GROUPS if f"{name}_train" in arrays), None)
    return _Arrays(
        key="x_train",
        inputs=_both(arrays, "x"),
        labels=labels,
        official={"train": np.arange(train), "test": np.arange(train, len(labels))},
        groups=groups,
    )


def _both(arrays: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    """The training samples' and then the test samples'."""
    return np.concatenate([arrays[f"{key}_{split}"] for split in _SPLITS])


def _official(arrays: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Official sets by their masks, bool [N]; every other sample trains."""
    masks = {}
    for split in ("test", "val"):
        name = f"official_{split}"
        if name in arrays:
            mask = masks[split] = arrays[name]
            if mask.dtype != bool or mask.shape != (count,):
                raise ValueError(f"{name} is {mask.dtype} {mask.shape}, not bool ({count},)")
    named = np.sum(list(masks.values()), axis=0)
    if named.max(initial=0) > 1:
        raise ValueError("official_test and official_val name a sample twice")
    masks = {"train": named == 0} | masks
    return dict(zip(masks, map(np.flatnonzero, masks.values())))


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
