"""Any .npz file with images and labels."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_ht.data.arrays import opened_npz
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.limits import numbered_classes
from fedjax_ht.data.sources.archive import Origin, reading, user_path
from fedjax_ht.data.sources.images import decode_all, resize, stack
from fedjax_ht.data.sources.labels import warn_of_empty_class_0

_KEYS = (("images", "labels"), ("x", "y"))
_ORIGIN = Origin(
    "an .npz of images and labels, x and y, x_train, y_train, x_test and y_test, or jpeg, offset, label and wnid",
    "write it with numpy.savez_compressed(path, images=..., labels=...)",
)


def read_npz(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Images and labels of an .npz, where PATH is relative to `data_dir` if that is given.

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3, uint8 or floats in [0, 1] or [-1, 1]; labels are
    integers [N] from 0. With train and test arrays, these become the official sets. Classes are named by number.
    Images may also be JPEG files, see `read_jpegs`, whose classes have names.
    """
    file = user_path(path, data_dir)
    with reading(file, _ORIGIN):
        with opened_npz(file) as arrays:
            packed = "jpeg" in arrays
            images, labels, official = (read_jpegs(arrays), arrays["label"], {}) if packed else _select(arrays)
            names = arrays["wnid"].tolist() if packed else None
        images, labels = to_bytes(to_nhwc(images)), _to_labels(labels)
        class_names = tuple(map(str, names)) if names else numbered_classes(int(labels.max(initial=-1)) + 1)
        warn_of_empty_class_0(file, labels)
        return Dataset(f"npz:{path}", resize(images, image_size), labels, class_names, official=official)


def read_jpegs(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Colour images of one size from "jpeg" uint8, the files one after another, and "offset" [N + 1], where each starts
    and the last ends; beside them are "label" [N] and "wnid", the classes' names. uint8 [N, H, W, 3].

    Raises:
      ValueError: an entry is missing, or the sizes differ.
    """
    if missing := {"jpeg", "offset", "label", "wnid"} - set(arrays):
        raise ValueError(f"no entry {', '.join(sorted(missing))}; it must hold JPEG files and their labels")
    jpeg, offset = arrays["jpeg"], arrays["offset"]
    if jpeg.dtype != np.uint8 or jpeg.ndim != 1 or offset.dtype.kind not in "iu" or offset.ndim != 1:
        raise ValueError(f"jpeg is {jpeg.dtype} {jpeg.shape}, offset {offset.dtype} {offset.shape}; see read_jpegs")
    steps = np.concatenate([[0], offset, [len(jpeg)]]).astype(np.int64)
    if len(offset) < 2 or (np.diff(steps) < 0).any():
        raise ValueError(f"offset must run from 0 to {len(jpeg)}, the length of jpeg, without going back")
    files = ((i, jpeg[start:end].tobytes()) for i, (start, end) in enumerate(itertools.pairwise(offset.tolist())))
    images = [image for _, image in decode_all(files, None)]
    if len({image.shape[:2] for image in images}) > 1:
        raise ValueError("the JPEG files are of more than one size")
    images = stack(images)
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images


def to_nhwc(images: np.ndarray) -> np.ndarray:
    """[N, H, W], [N, H, W, C] or [N, C, H, W] to [N, H, W, C]; C is 1 or 3, the last axis if both would do."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim == 4 and images.shape[-1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images.transpose(0, 2, 3, 1)
    raise ValueError(f"images of shape {images.shape}, not [N, H, W] or [N, H, W, C] or [N, C, H, W] with C 1 or 3")


def to_bytes(images: np.ndarray) -> np.ndarray:
    """uint8 as it is; floats in [0, 1], or in [-1, 1] if any is negative, scaled to [0, 255] and rounded."""
    if images.dtype == np.uint8 or not images.size:
        return images.astype(np.uint8)
    low, high = images.min(), images.max()
    if images.dtype.kind != "f" or not -1 <= low <= high <= 1:
        raise ValueError(f"{images.dtype} images from {low} to {high}, not uint8 or floats in [0, 1] or [-1, 1]")
    return np.round((images * 0.5 + 0.5 if low < 0 else images) * 255).astype(np.uint8)


def _select(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Images, labels and official sets by whichever keys the file has."""
    for images, labels in _KEYS:
        if images in arrays and labels in arrays:
            return arrays[images], arrays[labels], {}
    splits = ("train", "test")
    if all(f"{kind}_{split}" in arrays for kind in "xy" for split in splits):
        (x, x_test), (y, y_test) = ([arrays[f"{kind}_{split}"] for split in splits] for kind in "xy")
        official = {"train": np.arange(len(x)), "test": np.arange(len(x), len(x) + len(x_test))}
        if len(x) != len(y):
            raise ValueError(f"{len(x)} training images for {len(y)} labels")
        return np.concatenate([x, x_test]), np.concatenate([y, y_test]), official
    raise ValueError(f"its arrays are {', '.join(arrays) or 'none'}")


def _to_labels(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "iu" or labels.shape not in ((labels.size,), (labels.size, 1)):
        raise ValueError(f"labels are {labels.dtype} {labels.shape}, not integers [N]")
    return labels.ravel().astype(np.int64)
