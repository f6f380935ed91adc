"""Pooling as elementwise work on strided slices: `reduce_window` has a slow transpose on CPU."""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from fedjax_ht.ops.arrays import Array


def max_pool(
    x: Float[Array, "B ... C"],
    window: int,
    stride: int,
    padding: int = 0,
    ceil: bool = False,
    axes: Sequence[int] = (1, 2),
) -> Float[Array, "B ... C"]:
    """Takes the maximum of square windows, with torch's MaxPool2d rules for the output size.

    A ReLU belongs behind it: the values are those of one before it, at a quarter of the work for
    2x2 windows.

    Args:
      x: float [B, H, W, C].
      window, stride, padding: numbers of pixels, for each axis; padding is -inf.
      ceil: True also takes a last window that begins inside the image (or its left padding) and
        ends outside.
      axes: the axes that are pooled; the others stay as they are.

    Returns:
      float [B, H', W', C].

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_ht.ops import max_pool
      >>> image = jnp.arange(16.0).reshape(1, 4, 4, 1)
      >>> max_pool(image, window=2, stride=2)[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
    """
    for axis in axes:  # the maximum of a square is that of its rows' maxima
        x = _max_along(x, axis, window, stride=stride, padding=padding, ceil=ceil)
    return x


def _max_along(x: Array, axis: int, window: int, stride: int, padding: int, ceil: bool) -> Array:
    length = x.shape[axis]
    span = length + 2 * padding - window
    if ceil:
        span += stride - 1
    out = span // stride + 1
    if (out - 1) * stride >= length + padding:
        out -= 1
    end = (out - 1) * stride + window  # of the last window, counted from the left padding
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (padding, end - padding - length, 0)
    x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), edges)
    slices = (lax.slice_in_dim(x, i, i + end - window + 1, stride, axis) for i in range(window))
    return functools.reduce(jnp.maximum, slices)


def adaptive_pool(x: Float[Array, "... L"], width: int) -> Float[Array, "... {width}"]:
    """Averages features to another width: float [..., L] -> [..., width].

    Output i is the mean of inputs floor(i L / width) to ceil((i + 1) L / width) - 1, as in torch's
    AdaptiveAvgPool1d: windows overlap where `width` does not divide L, and repeat features where it
    is larger.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_ht.ops import adaptive_pool
      >>> adaptive_pool(jnp.array([1.0, 2.0, 3.0]), 2).tolist()
      [1.5, 2.5]
    """
    length = x.shape[-1]
    if length == width:
        return x
    # windows repeat themselves: 1664 to 512 is 128 times 13 to 4
    periods = math.gcd(length, width)
    ins, outs = length // periods, width // periods
    if outs == 1:
        return x.reshape(*x.shape[:-1], width, -1).mean(-1)
    if ins == 1:
        return jnp.repeat(x, outs, axis=-1)
    i, position = jnp.arange(outs), jnp.arange(ins)[:, None]
    first, past = i * ins // outs, -(-(i + 1) * ins // outs)
    weights = ((first <= position) & (position < past)) / (past - first)
    periodic = x.reshape(*x.shape[:-1], periods, ins)
    return (periodic @ weights.astype(x.dtype)).reshape(*x.shape[:-1], width)
