"""Two-dimensional convolution whose lowering is chosen per backend.

Under `vmap` over clients a native convolution becomes a grouped one, and inside a scan XLA's CPU backend leaves its
fast path: both are 10 to 20 times slower than a matrix product of image patches (benchmarks/results/conv_cpu.md).
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

Lowering = Literal["auto", "native", "patches"]


def conv2d(x: jax.Array, kernel: jax.Array, *, lowering: Lowering = "auto") -> jax.Array:
    """Convolves with stride 1 and no padding, as the papers' CNNs do.

    Args:
      x: float [B, H, W, C].
      kernel: float [k, k, C, O], flax's layout.
      lowering: "patches" (matrix product of patches), "native" (XLA's convolution), or "auto": patches on CPU.

    Returns:
      float [B, H - k + 1, W - k + 1, O].
    """
    if lowering == "auto":
        lowering = "patches" if jax.default_backend() == "cpu" else "native"
    if lowering == "native":
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    if lowering != "patches":
        raise ValueError(f"lowering is {lowering!r}; it must be auto, native or patches")
    height, width, channels, features = kernel.shape
    columns = _windows(_windows(x, width, axis=2), height, axis=1)  # [B, H', W', k, k, C]
    batch, out_height, out_width = columns.shape[:3]
    rows = columns.reshape(-1, height * width * channels)
    return (rows @ kernel.reshape(-1, features)).reshape(batch, out_height, out_width, features)


def _windows(x: jax.Array, size: int, axis: int) -> jax.Array:
    """All windows of `size` along `axis`, stacked before the trailing window and channel axes.

    One axis at a time, so that the transposed pass adds 2 k shifted slices instead of k * k.
    """
    length = x.shape[axis] - size + 1
    return jnp.stack([lax.slice_in_dim(x, i, i + length, axis=axis) for i in range(size)], axis=3)
