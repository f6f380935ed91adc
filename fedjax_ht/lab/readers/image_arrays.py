"""Arrays that are images, or may be: which they are, and their bytes [N, H, W, C]."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.inputs import CHANNELS, AsStored, Preprocess, channels_first, looks_like_image
from fedjax_ht.data.conversion import refuse_not_finite
from fedjax_ht.lab.readers.source import as_stored

_STEP = 1 / 512  # half a step of 8 bits: rounding alone takes a value so far beyond 0 or 1
_DARK = 32  # bytes up to here are of another scale than 0 to 255
_CHUNK = 1 << 22  # values that are looked at together


def guess(key: str, x: np.ndarray) -> tuple[bool, str]:
    """Guesses whether samples whose name does not tell are images.

        uint8, 3 or 4 axes, of the proportions of an image      images
        uint8, any other                                        an error
        floats, 4 axes, such proportions and 1 or 3 channels    images if all values are the 256
        floats, 3 axes, such proportions                        steps of 8 bits, else as they are
        floats, any other                                       as they are
        other integers, 2 axes                                  as they are: tokens
        other integers, any other                               images, which refuses them

    Args:
      key: name of the array, for the lines.
      x: samples [N, ...].

    Returns:
      Whether they are images, and a line on it; "" where there is no doubt.

    Raises:
      ValueError: bytes of other proportions, or floats that are bytes.
    """
    form = f"{key} is {x.dtype} {x.shape}"
    if x.dtype.kind == "f":
        return _guess_of_floats(form, x)
    if x.dtype.kind == "b":
        raise ValueError(
            f"{form}; call it images if it is, where True becomes 255, or give "
            "inputs=x.astype(np.float32)"
        )
    if x.dtype == np.uint8 and x.size and not _may_be_images(x.shape):
        raise ValueError(
            f"{form}, bytes of other proportions than an image's; call it images if they are, or "
            "inputs if they are not; rows of pixels need images.reshape(-1, H, W, C)"
        )
    return x.dtype == np.uint8 or x.ndim != 2, ""


def _guess_of_floats(form: str, x: np.ndarray) -> tuple[bool, str]:
    if not x.size or not _may_be_images(x.shape):
        return False, ""
    if _is_stepped(x):
        line = f"{form} within -1 to 1: grey images. Call it inputs if it is none"
        return True, line if x.ndim == 3 else ""
    if x.ndim == 3:
        return False, ""
    if is_whole(x, 0, 255):
        raise ValueError(
            f"{form} of whole numbers from {x.min():g} to {x.max():g}; give images as "
            "x.astype(np.uint8), from 0 to 255, or call it inputs"
        )
    return False, (
        f"{form}, kept as floats: its values are not those of 8-bit images. Call it images if it "
        "is, or inputs to end this line"
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
    """Samples whose name, or values, have told whether they are images.

    Attributes:
      inputs: images as bytes [N, H, W, C], or anything else as it is stored; or N texts.
      preprocess: None for images and texts.
      converted: changes of the values, a phrase or none.
      warnings: a line on a guess, or none.
    """

    inputs: Any
    preprocess: Preprocess | None
    converted: tuple[str, ...]
    warnings: tuple[str, ...]


def image_or_stored(key: str, x: np.ndarray, is_image: bool | None = None) -> Samples:
    """Returns an array as images or as it is; None of `is_image` guesses.

    Raises:
      ValueError: the values are neither. One line.
    """
    line = ""
    if is_image is None:
        is_image, line = guess(key, x)
    warnings = (line,) if line else ()
    if not is_image:
        return Samples(as_stored(key, x), AsStored(), (), warnings)
    images, change = to_bytes(to_nhwc(x))
    return Samples(images, None, (change,) if change else (), warnings)


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


def to_bytes(images: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns images as bytes, and how they were made so; "" of bytes.

    True is 255. Integers, and whole floats, are bytes if they are from 0 to 255, and reach 32.
    Other floats are scaled from [0, 1], or from [-1, 1] if one is negative, and rounded.

    Raises:
      ValueError: no range can be told without doubt. One line that says what to give.
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
    """Floats in [0, 1], but for rounding, to bytes."""
    return np.clip(np.round(images * 255), 0, 255).astype(np.uint8)
