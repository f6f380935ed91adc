"""Any .npz file with samples and labels."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_ht.core.inputs import AsStored, Standardised
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.labels import as_labels
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.as_stored import as_stored, refuse_image_size
from fedjax_ht.lab.readers.image_arrays import Guess, guess, to_bytes, to_nhwc
from fedjax_ht.lab.readers.images import decode_all, resize, stack
from fedjax_ht.lab.readers.named_arrays import NamedArrays, select
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_checks import class_lines
from fedjax_ht.lab.safe.archive import Origin, reading, user_path
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.limits import numbered_classes

_ORIGIN = Origin(
    "an .npz of images and labels, inputs and labels, x and y, each also by train and test, or "
    "jpeg, offset, label and wnid",
    "write it with numpy.savez_compressed(path, images=..., labels=...), or inputs=... for what is "
    "no image",
)


def read_npz(path: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    """Reads samples and labels of an .npz, PATH one of the current folder or `data_dir`.

    `named_arrays.select` says by which names. What the samples are goes by the name: images are
    images, or an error; inputs are as they are; of x `image_arrays.guess` tells by type and axes.

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3, of bytes or floats in [0, 1] or
    [-1, 1], and are kept as bytes (`image_arrays.to_bytes`). What is as it is has two axes or more,
    and `AsStored` for a model. Labels are whole numbers from 0. Classes are named by "class_names"
    or "classes", else by number. Images may also be JPEG files, see `read_jpegs`, whose classes
    have names.
    """
    file = user_path(path, data_dir)
    with reading(file, _ORIGIN):
        with opened_npz(file) as arrays:
            content = _packed(arrays) if "jpeg" in arrays else select(arrays)
        labels, rule, changed = as_labels("it", content.labels), None, ""
        kind = _kind(content)
        if kind.is_image:
            images, changed = to_bytes(to_nhwc(content.inputs))
            inputs = resize(images, image_size)
        else:
            refuse_image_size(image_size)
            inputs = as_stored(content.key, content.inputs)
            rule = Standardised(*content.standard) if content.standard else AsStored()
        warnings = content.warnings
        if kind.line:
            warnings = (kind.line, *warnings)
        class_names = tuple(content.names or numbered_classes(int(labels.max(initial=-1)) + 1))
        if not content.names:
            present = np.unique(labels, return_inverse=True)
            warnings += class_lines("labels", present[1], list(map(str, present[0])))
        return Dataset(
            name=f"npz:{path}",
            inputs=inputs,
            labels=labels,
            class_names=class_names,
            preprocess=rule,
            official=content.official,
            groups=content.groups,
            vocabulary=content.vocabulary,
            reading=Reading(
                path=str(file),
                group_names=content.group_names,
                left_out=content.left_out,
                converted=tuple(filter(None, [changed])),
                warnings=warnings,
            ),
        )


def _kind(content: NamedArrays) -> Guess:
    """Says whether the samples are images, by the key or else by a guess."""
    if content.key in ("images", "inputs"):
        return Guess(content.key == "images")
    return guess(content.key, content.inputs)


def _packed(arrays: Mapping[str, np.ndarray]) -> NamedArrays:
    """The set of a file of JPEG files."""
    return NamedArrays(
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

    images = [image.pixels for _, image in decode_all(encoded(), None)]
    if len({image.shape[:2] for image in images}) > 1:
        raise ValueError("the JPEG files are of more than one size")
    images = stack(images)
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images


NPZ = Source(
    name="npz",
    argument="PATH",
    about="it is a file of your own, and nothing is to be downloaded",
    read=read_npz,
    place=user_path,
)
