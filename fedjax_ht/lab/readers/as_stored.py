"""Arrays that are no images and are kept as they are."""

import numpy as np

from fedjax_ht.data.conversion import fits_device


def as_stored(name: str, x: np.ndarray) -> np.ndarray:
    """Samples [N, ...] that a model sees as they are.

    They are floats of 32 bits at most, or integers that fit in int32.

    Args:
      name: the name of the array, for the error.
      x: floats of 64 bits become float32, integers of more than 16 bits int32; all else keeps its
        type.

    Raises:
      ValueError: of fewer than two axes, of another type, too large, NaN or infinite, or float64
        that float32 cannot tell apart.
    """
    if x.ndim < 2 or x.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} is {x.dtype} {x.shape}; samples are floats or integers of at least two axes"
        )
    fits_device(name, x)
    if x.dtype.kind == "f":
        return x.astype(np.float16 if x.dtype.itemsize == 2 else np.float32, copy=False)
    if x.dtype.itemsize <= 2:
        return x.astype(x.dtype.newbyteorder("="), copy=False)
    return x.astype(np.int32, copy=False)


def refuse_image_size(image_size: int | None, subject: str = "it") -> None:
    """Refuses a size for samples that have none; `subject` begins the message's clause."""
    if image_size is not None:
        raise ValueError(
            f"image_size is {image_size}, but {subject} holds no images; leave it at 0 (None)"
        )
