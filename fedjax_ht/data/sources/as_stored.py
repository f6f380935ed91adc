"""Arrays that are no images and are kept as they are, and the groups of their samples."""

import numpy as np

from fedjax_ht.data.dataset import refuse_not_finite

_INT32 = np.iinfo(np.int32)


def as_stored(name: str, x: np.ndarray) -> np.ndarray:
    """Samples [N, ...] that a model sees as they are.

    They are floats of 32 bits at most, or integers that fit in int32.

    Args:
      name: of the array, for the error.
      x: floats of 64 bits become float32, integers of more than 16 bits int32; all else keeps its
        type.

    Raises:
      ValueError: of fewer than two axes, of another type, too large, NaN or infinite.
    """
    if x.ndim < 2 or x.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} is {x.dtype} {x.shape}; samples are floats or integers of at least two axes"
        )
    if x.dtype.kind == "f":
        refuse_not_finite(name, x)
        return x.astype(np.float16 if x.dtype.itemsize == 2 else np.float32, copy=False)
    if x.dtype.itemsize <= 2:
        return x.astype(x.dtype.newbyteorder("="), copy=False)
    return _int32(name, x)


def to_groups(name: str, owners: np.ndarray) -> np.ndarray:
    """The group of each sample, int32 [N].

    Args:
      name: of the array, for the error.
      owners: integers, or text [N], which is numbered in sorted order.

    Raises:
      ValueError: of another type or shape, or beyond int32.
    """
    if owners.ndim == 1 and owners.dtype.kind == "U":
        return np.unique(owners, return_inverse=True)[1].astype(np.int32)
    if owners.ndim != 1 or owners.dtype.kind not in "iu":
        raise ValueError(f"{name} is {owners.dtype} {owners.shape}, not integers or text [N]")
    return _int32(name, owners)


def refuse_image_size(image_size: int | None, subject: str = "it") -> None:
    """Refuses a size for samples that have none; `subject` begins the message's clause."""
    if image_size is not None:
        raise ValueError(
            f"image_size is {image_size}, but {subject} holds no images; leave it at 0 (None)"
        )


def _int32(name: str, x: np.ndarray) -> np.ndarray:
    if x.size and not _INT32.min <= int(x.min()) <= int(x.max()) <= _INT32.max:
        raise ValueError(f"{name} runs from {x.min()} to {x.max()}, beyond int32")
    return x.astype(np.int32, copy=False)
