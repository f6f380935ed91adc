"""Convolution, its transpose and pooling: by image patches, or XLA's own where that is faster.

Under `vmap` over clients a native convolution becomes a grouped one, and the gradient of its kernel
leaves the fast path of XLA's CPU backend. Both are 10 to 20 times slower than a product of patches
(benchmarks/results/conv_cpu.md). A pass of one client without a gradient has neither problem. On a
CPU most layers then use XLA's own convolution, which copies no patches (`native_pays`).

On GPUs the product becomes a batched one, which can be part of a CUDA graph. A ResNet-18 of native
convolutions takes as many kernels, and XLA leaves cuDNN's outside the graph. The two have not been
timed against each other on a GPU. The gradient of a grouped convolution is known to cost as much as
if it had one group (github.com/jax-ml/jax/issues/13800).

Kernel entries that only ever meet padding are dropped, which saves work and does not change the
result. A 3x3 kernel on the 1x1 maps at the end of a ResNet with 32x32 input has one entry that
counts, not nine.

The transposed convolution is the transpose of `conv2d`: a matrix product and shifted sums, with the
gradients of these. Pooling is elementwise work on strided slices: `reduce_window` has a slow
transpose on CPU.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Float

from fedjax_ht.ops.arrays import Array
from fedjax_ht.ops.patches import (
    convolve_depthwise,
    convolve_in_cache,
    convolve_patches,
    images_at_once,
    in_blocks,
)

Lowering = Literal["patches", "native"]


class Axis(NamedTuple):
    """One spatial axis of a convolution, without the kernel's entries that meet padding alone.

    Attributes:
      taps: the kernel's entries that meet data.
      padding: pixels of padding before and after that these need; negative if the last pixels are
        never seen.
    """

    taps: slice
    padding: tuple[int, int]


def conv2d(
    x: Float[Array, "B H W C"],
    kernel: Float[Array, "h w D O"],
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    *,
    lowering: Lowering | None = None,
) -> Float[Array, "B P Q O"]:
    """Convolves with one stride and one zero padding for both axes, as torch's Conv2d does.

    Args:
      x: float [B, H, W, C].
      kernel: float [h, w, C / groups, O], flax's layout.
      stride, padding: stride and zero padding in pixels, for both axes.
      groups: 1, or C with O = C for a depthwise convolution.
      lowering: "patches" (matrix product of patches) or "native" (XLA's convolution); None takes
        patches, but on a CPU the faster one for a pass without gradient.

    Returns:
      float [B, (H + 2 padding - h) // stride + 1, (W + 2 padding - w) // stride + 1, O].

    Raises:
      ValueError: `groups` or `lowering` is something else, or the kernel exceeds the padded images.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_ht.ops import conv2d
      >>> images, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 16))
      >>> conv2d(images, kernel, stride=2, padding=1).shape
      (2, 4, 4, 16)
    """
    channels, features = x.shape[-1], kernel.shape[-1]
    if groups != 1 and not groups == channels == features:
        raise ValueError(
            f"groups is {groups} for {channels} -> {features} channels; it must be 1, or equal to "
            "both"
        )
    if lowering not in (None, "native", "patches"):
        raise ValueError(f"lowering is {lowering!r}; it must be patches or native")
    rows = _axis(x.shape[1], kernel.shape[0], stride, padding)
    columns = _axis(x.shape[2], kernel.shape[1], stride, padding)
    kernel = kernel[rows.taps, columns.taps]
    if lowering == "native":
        return _native(x, kernel, stride, (rows.padding, columns.padding), groups)
    x = lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), (*rows.padding, 0), (*columns.padding, 0), (0, 0, 0))
    )
    if groups > 1:
        return convolve_depthwise(x, kernel, stride)
    if jax.default_backend() != "cpu":
        return convolve_patches(x, kernel, (stride, stride))
    smallest = min(x.shape[1] - sum(rows.padding), x.shape[2] - sum(columns.padding))
    # Only products take two dtypes, and round their factors to bfloat16 (`ops.products`).
    config: Any = jax.config  # declares none of its options
    by_product = config.jax_default_matmul_precision == "bfloat16" or x.dtype != kernel.dtype
    if lowering is None and not by_product and native_pays(kernel.shape, smallest):
        return _native_unless_differentiated(x, kernel, stride)
    return convolve_in_cache(x, kernel, stride)


def native_pays(kernel: tuple[int, ...], smallest: int) -> bool:
    """Returns whether XLA's own convolution is faster on a CPU, without a gradient.

    Measured on a Zen 4 at batches of 16 and 64 (benchmarks/results/conv_forward_cpu.md).

    Args:
      kernel: the kernel's shape, [h, w, C, O].
      smallest: the shorter side of the images, without padding.
    """
    height, width, channels, features = kernel
    if height == width == 1:
        return False  # a product already, which copies nothing
    # XLA has no fast path for images smaller than the kernel, and with jax 0.10 for three channels
    # and few features: up to 80 and 9 times slower.
    if smallest < max(height, width) or (channels == 3 and features < 48):
        return False
    return features > 16 or channels > 16


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _native_unless_differentiated(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w D O"], stride: int
) -> Float[Array, "B P Q O"]:
    """Convolves without padding by XLA's own convolution; for gradients and vmap, by patches."""

    @jax.custom_batching.custom_vmap
    def convolve(x, kernel):
        native = functools.partial(_native, kernel=kernel, stride=stride)
        # Bytes of an image, in and out.
        size = 4 * (x.size + jax.eval_shape(native, x).size) // max(len(x), 1)
        return in_blocks(native, x, images_at_once(len(x), size))

    @convolve.def_vmap
    def convolve_many(size, is_batched, x, kernel):
        # A kernel for each client would make it a grouped convolution.
        axes = tuple(0 if batched else None for batched in jax.tree.leaves(is_batched))
        by_patches = functools.partial(convolve_in_cache, stride=stride)
        return jax.vmap(by_patches, axes, axis_size=size)(x, kernel), True

    return convolve(x, kernel)


@functools.partial(_native_unless_differentiated.defjvp, symbolic_zeros=True)
def _differentiated(stride: int, primals: tuple, tangents: tuple) -> tuple:
    """Convolves by patches, and differentiates only in the arguments with tangents.

    The images of a first layer have none.
    """
    moving = [not isinstance(tangent, SymbolicZero) for tangent in tangents]

    def convolve(*moved):
        rest = iter(moved)
        x, kernel = (next(rest) if moves else primal for moves, primal in zip(moving, primals))
        return convolve_in_cache(x, kernel, stride)

    return jax.jvp(
        convolve,
        [x for moves, x in zip(moving, primals) if moves],
        [tangent for moves, tangent in zip(moving, tangents) if moves],
    )


def _native(
    x: Float[Array, "B H W C"],
    kernel: Float[Array, "h w D O"],
    stride: int,
    padding=((0, 0), (0, 0)),
    groups: int = 1,
) -> Float[Array, "B P Q O"]:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _axis(length: int, size: int, stride: int, padding: int) -> Axis:
    """Returns the kernel's entries that meet data along an axis, and the padding for these."""
    _check_fits(length, size, padding)
    out = (length + 2 * padding - size) // stride + 1
    last = (out - 1) * stride - padding  # where the last output's first entry lies
    first_tap, past_tap = max(0, -last), min(size, length + padding)
    return Axis(slice(first_tap, past_tap), (padding - first_tap, last + past_tap - length))


def _check_fits(length: int, size: int, padding: int) -> None:
    if size > length + 2 * padding:
        raise ValueError(
            f"a kernel of {size} does not fit {length} pixels with padding {padding}; use larger "
            "images"
        )


def conv_transpose2d(
    x: Float[Array, "B H W C"],
    kernel: Float[Array, "h w C O"],
    stride: int = 1,
    padding: int = 0,
) -> Float[Array, "B P Q O"]:
    """Computes a transposed convolution with one stride and padding, as torch's ConvTranspose2d.

    Every pixel (p, q) adds x[p, q] @ kernel[i, j] to pixel (p stride + i - padding, q stride + j -
    padding) of the output.

    Args:
      x: float [B, H, W, C].
      kernel: float [h, w, C, O].
      stride: the stride in pixels, for both axes.
      padding: pixels that are cut off at every edge.

    Returns:
      float [B, (H - 1) stride - 2 padding + h, (W - 1) stride - 2 padding + w, O].

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_ht.ops import conv_transpose2d
      >>> conv_transpose2d(jnp.ones((1, 4, 4, 8)), jnp.ones((4, 4, 8, 3)), 2, 1).shape
      (1, 8, 8, 3)
    """
    batch, height, width, _ = x.shape
    out_height = (height - 1) * stride - 2 * padding + kernel.shape[0]
    out_width = (width - 1) * stride - 2 * padding + kernel.shape[1]
    out = jnp.zeros((batch, out_height, out_width, kernel.shape[-1]), x.dtype)

    def convolve(y):
        return conv2d(y, kernel.swapaxes(-1, -2), stride, padding, lowering="patches")

    # jax.linear_transpose has no rule for products in bfloat16, which have their own gradient.
    (y,) = jax.vjp(convolve, out)[1](x)
    return y


def max_pool(
    x: Float[Array, "B ... C"],
    window: int,
    stride: int,
    padding: int = 0,
    ceil: bool = False,
    axes: Sequence[int] = (1, 2),
) -> Float[Array, "B ... C"]:
    """Takes the maximum of square windows, with torch's MaxPool2d rules for the output size.

    Apply a ReLU after it, not before: the values are the same, at a quarter of the work for 2x2
    windows.

    Args:
      x: float [B, H, W, C].
      window, stride, padding: numbers of pixels, for each axis; padding is -inf.
      ceil: True also takes a last window that begins inside the image (or its left padding) and
        ends outside.
      axes: the axes to pool.

    Returns:
      float [B, H', W', C].

    Raises:
      ValueError: the window exceeds the padded images.

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
    if span < 0:
        _check_fits(length, window, padding)
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
    AdaptiveAvgPool1d. Windows overlap if `width` does not divide L, and repeat features if it is
    larger.

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
