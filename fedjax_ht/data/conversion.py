"""Converts users' arrays and groups to NumPy arrays that a device can hold.

`Dataset` and all readers accept the same types: lists, arrays of other libraries, and columns and
frames of pandas and Hugging Face, if their meaning is unambiguous. Integers and floats beyond 32
bits, which a device would change silently, are rejected.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.check.options import FLOAT
from fedjax_ht.core.inputs import CHANNELS, looks_like_image

_INT32 = np.iinfo(np.int32)
_DARK = 32  # images of bytes below this value have another scale than 0 to 255


def as_array(name: str, values: Any) -> np.ndarray:
    """Returns an array-like as a plain NumPy array, neither masked nor a matrix, without a copy.

    Args:
      name: the name of the values, for the error.
      values: an array of NumPy, jax or PyTorch (on the CPU), a Series, DataFrame or other object
        with `to_numpy`, or a list of numbers or of such arrays, all of the same shape.

    Raises:
      ValueError: it is none of these, its parts have different shapes, or a value is masked.
    """
    array = _any_array(name, values)
    masked = np.count_nonzero(np.ma.getmask(array)) if array.dtype.names is None else 0
    if masked:
        raise ValueError(
            f"{name} has {masked} masked values of {array.size}, which a device would read; fill "
            "them, values.filled(0), or drop their samples"
        )
    return array if isinstance(array, np.memmap) else np.asarray(array)


def _any_array(name: str, values: Any) -> np.ndarray:
    """Returns an array-like as a NumPy array, which may be masked or a matrix."""
    try:
        if isinstance(values, np.ndarray):
            return values
        if hasattr(values, "to_numpy"):
            return np.asanyarray(values.to_numpy())
        if hasattr(values, "__array__") or hasattr(values, "__array_interface__"):  # for Pillow
            return np.asanyarray(values)
        if isinstance(values, Sequence) and not isinstance(values, str | bytes):
            rows = list(values)
            is_masked = any(isinstance(row, np.ma.MaskedArray) for row in rows)
            return np.ma.array(rows) if is_masked else np.asarray(rows)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{name} cannot be converted to an array ({reason}); give a NumPy array of samples of "
            "the same shape"
        ) from None
    raise ValueError(f"{name} is a {type(values).__name__}; give a NumPy array [N, ...]")


def as_inputs(name: str, inputs: Any, count: int) -> Any:
    """Returns samples as an array [N, ...], or a pytree of such arrays.

    Args:
      name: the name of the set, for the error.
      inputs: an array-like, see `as_array`, or a pytree of them. A list is a pytree if each entry
        is an array of `count` samples, else a list of samples.
      count: number of samples, N.

    Raises:
      ValueError: they are not numbers, not finite, or beyond 32 bits. One line.
    """
    if isinstance(inputs, Sequence) and not _is_pytree(inputs, count):
        leaves, tree = [inputs], jax.tree.structure(0)
    else:
        leaves, tree = jax.tree.flatten(inputs)
    if not leaves:
        raise ValueError(f"{name}: inputs are empty; give an array [N, ...]")
    arrays = [as_array(f"{name}: inputs", leaf) for leaf in leaves]
    for x in arrays:
        if x.dtype.kind not in "iuf":
            remedy = "give inputs.astype(np.float32), or np.uint8 for images"
            raise ValueError(
                f"{name}: inputs are {x.dtype}; they must be integers or floats, [N, ...], of "
                f"samples of the same shape{'; ' + remedy if x.dtype.kind == 'b' else ''}"
            )
        fits_device(f"{name}: inputs", x)
    return jax.tree.unflatten(tree, arrays)


def _is_pytree(inputs: Sequence, count: int) -> bool:
    """Returns whether every array in a list holds all samples."""
    leaves = (leaf for part in inputs for leaf in jax.tree.leaves(part))
    return len(inputs) > 0 and all(np.shape(leaf)[:1] == (count,) for leaf in leaves)


def as_images(inputs: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns images of bytes as uint8 [N, H, W, C], anything else unchanged.

    Grey images [N, H, W], such as MNIST's, get a channel axis. Other integers with the shape and
    range of images, e.g. from lists of pixels, become bytes, which the second result says; integers
    with two axes are tokens.
    """
    if not isinstance(inputs, np.ndarray) or inputs.dtype.kind not in "iu":
        return inputs, ()
    has_channels = inputs.ndim == 4 and inputs.shape[-1] in CHANNELS
    if not (has_channels or inputs.ndim == 3) or not looks_like_image(inputs.shape[1:3]):
        return inputs, ()
    if not _may_be_bytes(inputs):
        return inputs, ()
    converted: tuple[str, ...] = ()
    if inputs.dtype != np.uint8:
        low, high = inputs.min(), inputs.max()
        converted = (f"{inputs.dtype} images from {low} to {high} kept as bytes",)
    images = inputs.astype(np.uint8, copy=False)
    return images if has_channels else images[..., None], converted


def _may_be_bytes(x: np.ndarray) -> bool:
    """Returns whether integers are bytes, or have the range of bytes."""
    if x.dtype == np.uint8:
        return True
    return bool(x.min(initial=0) >= 0 and _DARK <= x.max(initial=0) <= 255)


def fits_device(name: str, x: np.ndarray) -> None:
    """Checks that numbers fit into a device's 32 bits.

    Raises:
      ValueError: a value is NaN, infinite or too large.
    """
    refuse_not_finite(name, x)
    if x.dtype.kind in "iu":
        refuse_beyond_int32(name, x)


def refuse_not_finite(name: str, x: np.ndarray) -> None:
    """Checks that floats are finite in float32.

    Raises:
      ValueError: a value is NaN, infinite or beyond float32.
    """
    if x.dtype.kind != "f" or not x.size:
        return
    # Extremes need no temporary array of x's size, and are NaN if any value is.
    if -FLOAT <= float(x.min()) <= float(x.max()) <= FLOAT:
        return
    for sample, row in enumerate(x):
        if not np.all(np.abs(np.float64(row)) <= FLOAT):
            raise ValueError(
                f"{name} has values that are NaN, infinite or beyond float32, first in sample "
                f"{sample}"
            )


def refuse_beyond_int32(name: str, x: np.ndarray) -> None:
    """Checks that integers do not overflow int32 on a device.

    Raises:
      ValueError: a value is beyond int32.
    """
    if x.size and not _INT32.min <= int(x.min()) <= int(x.max()) <= _INT32.max:
        raise ValueError(
            f"{name} runs from {x.min()} to {x.max()}, beyond int32; subtract an offset, or drop "
            "values that are not quantities"
        )


def as_groups(name: str, owners: Any) -> np.ndarray:
    """Returns the group of each sample, int32 [N].

    Args:
      name: the name of the array, for the error.
      owners: an array-like [N] of integers, or of strings, which are numbered in sorted order.

    Raises:
      ValueError: they have another type or shape, or are beyond int32.
    """
    values = as_array(name, owners)
    if values.ndim == 1 and values.dtype.kind == "O" and all(type(x) is str for x in values):
        values = values.astype(str)  # a pandas column
    if values.ndim == 1 and values.dtype.kind == "U":
        return np.unique(values, return_inverse=True)[1].astype(np.int32)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(
            f"{name} of {values.dtype} {values.shape}; they must be integers or strings, [N]"
        )
    refuse_beyond_int32(name, values)
    return values.astype(np.int32, copy=False)


def byte_doubts(images: np.ndarray) -> tuple[str, ...]:
    """Returns a warning for images of bytes that are nearly black, not scaled to 0 to 255."""
    highest = int(images.max(initial=0))
    if not 0 < highest < _DARK:
        return ()
    return (
        f"uint8 images run from {images.min()} to {highest}, nearly black if 255 is white; "
        f"multiply them by {math.floor(255 / highest)} if {highest} is white",
    )


CLASSES = 100_000  # maximum number of classes; ImageNet-21k has 21,841


def as_labels(name: str, labels: Any) -> np.ndarray:
    """Returns labels as int64 [N], a copy.

    Args:
      name: the name of the set, for the error.
      labels: an array-like, see `as_array`, [N] or [N, 1], of integers from 0.

    Raises:
      ValueError: the labels are something else. One line.
    """
    values = as_array(f"{name}: labels", labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind not in "iubf":
        raise ValueError(
            f"{name}: labels are {values.dtype}; they must be integers from 0: "
            "names, labels = np.unique(labels, return_inverse=True) numbers them"
        )
    if values.ndim != 1:
        hint = ""
        if values.ndim == 2 and np.isin(values, (0, 1)).all():
            hint = "; labels.argmax(1) converts one-hot labels"
        raise ValueError(
            f"{name}: labels of shape {values.shape}; they must be one number per sample, [N]{hint}"
        )
    if values.dtype.kind == "f":
        broken = values[~np.isfinite(values) | (values != np.floor(values))]
        if broken.size:
            raise ValueError(
                f"{name}: labels have values such as {broken[0]:g}; they must be whole numbers "
                "from 0"
            )
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < CLASSES:
        hint = "; -1 often marks a missing label: drop those samples" if values.min() == -1 else ""
        raise ValueError(
            f"{name}: labels run from {values.min():g} to {values.max():g}; they must be from 0 to "
            f"{CLASSES - 1:,}{hint}"
        )
    return values.astype(np.int64)


def label_doubts(labels: np.ndarray, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns warnings for classes without samples, or if one class has all samples.

    Args:
      labels: the samples' classes, int [N], from 0.
      class_names: names of all classes.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    empty = [name for name, count in zip(class_names, counts) if not count]
    lines = []
    if np.count_nonzero(counts) == 1:
        lines.append(f"all {len(labels)} samples are of one class, {class_names[labels[0]]}")
    if empty:
        verb = "class" if len(empty) == 1 else "classes"
        text = f"{len(empty)} of {len(class_names)} classes have no samples: {verb} {listed(empty)}"
        if labels.min() > 0:
            text += (
                f"; labels run from {labels.min()} to {labels.max()}, so class 0 has no "
                "samples: if they start at 1, subtract 1"
            )
        lines.append(text)
    return tuple(lines)
