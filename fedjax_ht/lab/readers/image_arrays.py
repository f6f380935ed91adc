"""Detects arrays that are images, and converts them to bytes [N, H, W, C]."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.inputs import CHANNELS, AsStored, Preprocess, channels_first, looks_like_image
from fedjax_ht.data.conversion import refuse_not_finite
from fedjax_ht.lab.readers.source import as_stored

_STEP = 1 / 512  # half an 8-bit step: rounding may exceed 0 or 1 by this much
_DARK = 32  # a maximum below this suggests another scale than 0 to 255
_CHUNK = 1 << 22  # values checked at once


def guess(key: str, x: np.ndarray, remedy: str = "") -> tuple[bool, str]:
    """Guesses whether samples are images if their name does not tell.

        uint8, 3 or 4 axes, with the proportions of an image    images
        uint8, any other                                        an error
        bool, any                                               an error
        floats, 4 axes, such proportions and 1 or 3 channels    images if all values are on the
        floats, 3 axes, such proportions                        256-step grid of bytes, or unchanged
        floats, any other                                       unchanged
        other integers, 2 axes                                  unchanged: tokens
        other integers, any other                               images, if `to_bytes` accepts them

    Args:
      key: name of the array, for messages.
      x: samples [N, ...].
      remedy: what to do in case of an error, if the array's name cannot be changed.

    Returns:
      Whether they are images, and a message about it; "" if there is no doubt.

    Raises:
      ValueError: bool, bytes of other proportions, or floats that are bytes.
    """
    form = f"{key} is {x.dtype} {x.shape}"
    if x.dtype.kind == "f":
        return _guess_of_floats(form, x, remedy)
    if x.dtype.kind == "b":
        by_name = (
            "call it images if it is, where True becomes 255, or give inputs=x.astype(np.float32)"
        )
        raise ValueError(f"{form}; {remedy or by_name}")
    if x.dtype == np.uint8 and x.size and not _may_be_images(x.shape):
        by_name = (
            "call it images if they are images, or inputs if not; rows of pixels need "
            "images.reshape(-1, H, W, C)"
        )
        raise ValueError(f"{form}, bytes without an image's proportions; {remedy or by_name}")
    return x.dtype == np.uint8 or x.ndim != 2, ""


def _guess_of_floats(form: str, x: np.ndarray, remedy: str) -> tuple[bool, str]:
    if not x.size or not _may_be_images(x.shape):
        return False, ""
    if _is_stepped(x):
        line = f"{form} within -1 to 1: grey images. Call it inputs if it is not"
        return True, line if x.ndim == 3 else ""
    if x.ndim == 3:
        return False, ""
    if is_whole(x, 0, 255):
        by_name = "give images as x.astype(np.uint8), from 0 to 255, or call it inputs"
        raise ValueError(f"{form} of integers from {x.min():g} to {x.max():g}; {remedy or by_name}")
    return False, (
        f"{form}, kept as floats: its values are not those of 8-bit images. Call it images if it "
        "is, or inputs to silence this warning"
    )


def _may_be_images(shape: tuple[int, ...]) -> bool:
    """Returns whether arrays of this shape have one or three channels and an image's sides."""
    if len(shape) == 3:
        return looks_like_image(shape[1:])
    if len(shape) == 4 and channels_first(shape):
        return looks_like_image(shape[2:])
    return len(shape) == 4 and shape[-1] in CHANNELS and looks_like_image(shape[1:3])


def _is_stepped(x: np.ndarray) -> bool:
    """Returns whether floats in [0, 1] or [-1, 1] are the 256 steps of bytes."""
    low, high = float(x.min()), float(x.max())
    if not -1 - _STEP <= low <= high <= 1 + _STEP:
        return False
    scale, offset = (127.5, 127.5) if low < -_STEP else (255.0, 0.0)
    tolerance = 0.2 if x.dtype.itemsize == 2 else 0.02
    flat = x.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        steps = flat[start : start + _CHUNK].astype(np.float32) * np.float32(scale)
        steps += np.float32(offset)
        if np.abs(steps - np.round(steps)).max() > tolerance:
            return False
    return True


def is_whole(x: np.ndarray, low: float, high: float) -> bool:
    """Returns whether all values are whole numbers of a range."""
    if not x.size or not low <= x.min() <= x.max() <= high:
        return False
    flat = x.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        if (part != np.floor(part)).any():
            return False
    return True


class Samples(NamedTuple):
    """Samples that are known to be images or not.

    Attributes:
      inputs: images as bytes [N, H, W, C], anything else as stored, or N strings.
      preprocess: None for images and texts.
      converted: description of a change of the values, at most one.
      warnings: message about a guess, at most one.
    """

    inputs: Any
    preprocess: Preprocess | None
    converted: tuple[str, ...]
    warnings: tuple[str, ...]


def image_or_stored(
    key: str, x: np.ndarray, is_image: bool | None = None, remedy: str = ""
) -> Samples:
    """Returns an array as images or unchanged; None for `is_image` guesses, see `guess`.

    Raises:
      ValueError: the values fit neither. One line.
    """
    line = ""
    if is_image is None:
        is_image, line = guess(key, x, remedy)
    warnings = (line,) if line else ()
    if not is_image:
        return Samples(as_stored(key, x), AsStored(), (), warnings)
    images, change = to_bytes(to_nhwc(x))
    return Samples(images, None, (change,) if change else (), warnings)


def to_nhwc(images: np.ndarray) -> np.ndarray:
    """Converts images [N, H, W], [N, H, W, C] or [N, C, H, W] to [N, H, W, C].

    C is 1 or 3; if both positions qualify, it is the last axis.
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


def to_bytes(images: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns images as bytes, and a description of the conversion; "" for bytes.

    True becomes 255. Integers and whole floats are bytes if they lie in 0 to 255 and reach 32.
    Other floats are scaled from [0, 1], or from [-1, 1] if one is negative, and rounded.

    Raises:
      ValueError: the range is ambiguous. One line that says what to pass.
    """
    kind = images.dtype.kind
    if images.dtype == np.uint8 or not images.size:
        return images.astype(np.uint8), ""
    if kind == "b":
        return images.astype(np.uint8) * np.uint8(255), "images of bool, True is 255"
    refuse_not_finite("it", images)
    low, high = images.min(), images.max()
    about = f"{images.dtype} images from {low} to {high}"
    if high >= _DARK and is_whole(images, 0, 255):
        return images.astype(np.uint8), f"{about} kept as bytes"
    if kind != "f":
        raise ValueError(f"{about}: give them as uint8, from 0 to 255")
    if not -1 - _STEP <= low <= high <= 1 + _STEP:
        remedy = "divide by the maximum, for floats in [0, 1]"
        if low < 0:
            remedy = (
                "give them as they were before they were normalised, uint8, or call the array "
                "inputs to keep its floats"
            )
        raise ValueError(f"{about}: {remedy}")
    if low >= -_STEP:
        return _rounded(images), f"{about} kept as bytes, 0 to 1 in 256 steps"
    return _rounded(images * 0.5 + 0.5), f"{about} kept as bytes, -1 to 1 in 256 steps"


def _rounded(images: np.ndarray) -> np.ndarray:
    """Converts floats in [0, 1], up to rounding errors, to bytes."""
    return np.clip(np.round(images * 255), 0, 255).astype(np.uint8)
