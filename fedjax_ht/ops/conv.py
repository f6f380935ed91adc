"""Two-dimensional convolution as a matrix product of image patches.

Under `vmap` over clients a native convolution becomes a grouped one, and the gradient of its kernel
leaves the fast path of XLA's CPU backend: both are 10 to 20 times slower than the product
(benchmarks/results/conv_cpu.md). A pass that nobody differentiates, of one client, has neither: on
a CPU most layers then take XLA's own convolution, which copies no patches (`native_pays`).

On GPUs the product becomes a batched one, which may lie in a CUDA graph; a ResNet-18 of native
convolutions takes as many kernels, and XLA leaves cuDNN's outside the graph
(benchmarks/results/gpu_aot_h100.md). Nothing has been timed on one; the gradient of a grouped
convolution is known to cost as much as if it had one group (github.com/jax-ml/jax/issues/13800).

On a CPU a kernel of few channels in and out makes several neighbouring outputs at once
(`columns_at_once`). Their patches overlap, so that fewer numbers are copied, and the product is
wider, at the price of multiplying by some zeros: the network of PyTorch's tutorial, whose
convolutions have 6 and 16 features, trains a third faster.

Kernel entries that would only ever meet padding are left out of the product, which changes nothing
but the work: a 3x3 kernel on the 1x1 maps at the end of a ResNet with 32x32 input has one entry
that counts, not nine.
"""

import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from fedjax_ht.ops.products import product

Lowering = Literal["patches", "native"]

LARGE = 6 << 20  # bytes of a batch's patches up to which they are made for all images at once
# bytes of patches that a core's own cache serves; twice the second level of a Zen 4
CACHED = 2 << 20
# scope that tells metrics.flops how many of a product's factors are not zeros
MULTIPLIED = "multiplied_{}_of_{}"
# kernel entries up to which all patches are cut in one go: a kernel less on GPUs, on CPU as fast
AT_ONCE = 9


class Axis(NamedTuple):
    """One spatial axis of a convolution, without the kernel's entries that meet padding alone.

    Attributes:
      taps: the kernel's entries that meet data.
      padding: before and behind, that these need; negative where the last pixels are never seen.
    """

    taps: slice
    padding: tuple[int, int]


def conv2d(
    x: jax.Array,
    kernel: jax.Array,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    *,
    lowering: Lowering | None = None,
) -> jax.Array:
    """Convolves with one stride and one zero padding for both axes, as torch's Conv2d does.

    Args:
      x: float [B, H, W, C].
      kernel: float [h, w, C / groups, O], flax's layout.
      stride, padding: in pixels.
      groups: 1, or C with O = C for a depthwise convolution.
      lowering: "patches" (matrix product of patches) or "native" (XLA's convolution, to compare
        with); None is patches, but on a CPU the faster one for a pass without gradient.

    Returns:
      float [B, (H + 2 padding - h) // stride + 1, (W + 2 padding - w) // stride + 1, O].

    Raises:
      ValueError: `groups` or `lowering` is something else.

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
            f"groups is {groups} for {channels} -> {features} channels; it must be 1, or both of "
            "them"
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
        return _depthwise(x, kernel, stride)
    if jax.default_backend() != "cpu":
        return _patches(x, kernel, (stride, stride))
    smallest = min(x.shape[1] - sum(rows.padding), x.shape[2] - sum(columns.padding))
    # Only products round their factors to bfloat16 (`ops.products`).
    config: Any = jax.config  # declares none of its options
    rounded = config.jax_default_matmul_precision == "bfloat16"
    if lowering is None and not rounded and native_pays(kernel.shape, smallest):
        return _native_unless_differentiated(x, kernel, stride)
    return _patches_in_cache(x, kernel, stride)


def native_pays(kernel: tuple[int, ...], smallest: int) -> bool:
    """Returns whether XLA's own convolution is faster on a CPU where no gradient is taken.

    Measured on a Zen 4 at batches of 16 and 64 (benchmarks/results/conv_forward_cpu.md).

    Args:
      kernel: its shape, [h, w, C, O].
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
def _native_unless_differentiated(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves without padding by XLA's own convolution, or by patches where a gradient follows
    or where clients are vmapped."""

    @jax.custom_batching.custom_vmap
    def convolve(x, kernel):
        out = jax.eval_shape(functools.partial(_native, stride=stride), x, kernel)
        images = images_at_once(len(x), 4 * (math.prod(x.shape[1:]) + math.prod(out.shape[1:])))
        if images == len(x):
            return _native(x, kernel, stride)
        blocks = x.reshape(-1, images, *x.shape[1:])
        return lax.map(lambda block: _native(block, kernel, stride), blocks).reshape(out.shape)

    @convolve.def_vmap
    def convolve_many(size, is_batched, x, kernel):
        # A kernel for each client would make it a grouped convolution.
        axes = tuple(0 if batched else None for batched in jax.tree.leaves(is_batched))
        by_patches = functools.partial(_patches_in_cache, stride=stride)
        return jax.vmap(by_patches, axes, axis_size=size)(x, kernel), True

    return convolve(x, kernel)


@functools.partial(_native_unless_differentiated.defjvp, symbolic_zeros=True)
def _differentiated(stride: int, primals: tuple, tangents: tuple) -> tuple:
    """Convolves by patches, and differentiates by those arguments that are differentiated: the
    images of a first layer are not."""
    moving = [not isinstance(tangent, SymbolicZero) for tangent in tangents]

    def convolve(*moved):
        rest = iter(moved)
        x, kernel = (next(rest) if moves else primal for moves, primal in zip(moving, primals))
        return _patches_in_cache(x, kernel, stride)

    return jax.jvp(
        convolve,
        [x for moves, x in zip(moving, primals) if moves],
        [tangent for moves, tangent in zip(moving, tangents) if moves],
    )


def _native(
    x: jax.Array, kernel: jax.Array, stride: int, padding=((0, 0), (0, 0)), groups: int = 1
) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _patches_in_cache(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves without padding, by products whose patches stay in the processor's cache."""
    batch, height, width, _ = x.shape
    out_height = (height - kernel.shape[0]) // stride + 1
    out_width = (width - kernel.shape[1]) // stride + 1
    columns = columns_at_once(out_width, kernel.shape[2], kernel.shape[3])
    widened = _widen(kernel, columns, stride)
    strides = (stride, stride * columns)
    convolve = functools.partial(_patches, kernel=widened, strides=strides)
    # Bytes of an image's float32 patches.
    size = 4 * out_height * (out_width // columns) * math.prod(widened.shape[:3])
    images = images_at_once(batch, size)
    with jax.named_scope(MULTIPLIED.format(kernel.shape[1], widened.shape[1])):
        if images == batch:
            out = convolve(x)
        else:
            # The gradient makes a block's patches again: from memory they would come more slowly.
            # Inside a loop XLA cannot undo that, so that no barrier against it is needed.
            again = jax.checkpoint(convolve, prevent_cse=False)
            out = lax.map(again, x.reshape(-1, images, *x.shape[1:]))
    # `columns` outputs that lie side by side are the product's columns, in this order: nothing
    # moves.
    return out.reshape(batch, out_height, out_width, kernel.shape[3])


def columns_at_once(out_width: int, channels: int, features: int) -> int:
    """Returns how many neighbouring outputs of a row to compute as one; they divide the row.

    Measured on a Zen 4 at batches of 10 and 50 (benchmarks/results/conv_columns_cpu.md): it pays
    for the few channels of first layers, and costs more than it saves where products are large
    anyway.
    """
    if features > 32 or channels * features > 256:
        return 1
    most = 4 if features <= 8 else 2
    return math.gcd(out_width, most)


def _widen(kernel: jax.Array, columns: int, stride: int) -> jax.Array:
    """Lays copies of a kernel side by side, each a stride further to the right.

    Returns:
      [h, w + (columns - 1) stride, C, columns * O], zero where a copy does not reach.
    """
    if columns == 1:
        return kernel
    room = (columns - 1) * stride
    copies = []
    for i in range(columns):
        copies.append(jnp.pad(kernel, ((0, 0), (i * stride, room - i * stride), (0, 0), (0, 0))))
    return jnp.concatenate(copies, axis=-1)


def images_at_once(batch: int, size: int) -> int:
    """Returns how many of a batch's images to convolve at a time.

    Args:
      batch: number of images.
      size: bytes of one image's patches.

    Returns:
      The batch where it is small, else its largest divisor whose patches stay in the cache, or 1.
    """
    if batch * size <= LARGE:
        return batch
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    return max(n for n in divisors if n == 1 or n * size <= CACHED)


def _axis(length: int, size: int, stride: int, padding: int) -> Axis:
    """Returns the kernel's entries that meet data along an axis, and the padding for these."""
    out = (length + 2 * padding - size) // stride + 1
    last = (out - 1) * stride - padding  # where the last output's first entry lies
    first_tap, past_tap = max(0, -last), min(size, length + padding)
    return Axis(slice(first_tap, past_tap), (padding - first_tap, last + past_tap - length))


def _patches(x: jax.Array, kernel: jax.Array, strides: tuple[int, int]) -> jax.Array:
    """Convolves without padding as one matrix product; `strides` of rows and columns."""
    height, width, channels, features = kernel.shape
    if height * width <= AT_ONCE:
        taps = [tap for _, _, tap in _taps(x, height, width, strides)]
        patches = jnp.stack(taps, axis=3)  # [B, H', W', h * w, C]
    else:
        by_column = _windows(x, width, strides[1], axis=2)
        patches = _windows(by_column, height, strides[0], axis=1)  # [B, H', W', h, w, C]
    batch, out_height, out_width = patches.shape[:3]
    rows = patches.reshape(-1, height * width * channels)
    return product(rows, kernel.reshape(-1, features)).reshape(
        batch, out_height, out_width, features
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _depthwise(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolves each channel by itself, without padding, as a sum of shifted products.

    Its input gradient is one too, four times faster than the sum of padded slices that JAX derives.
    """
    height, width = kernel.shape[:2]
    taps = _taps(x, height, width, (stride, stride))  # at least one, so that the sum is an array
    return sum(tap * kernel[i, j, 0] for i, j, tap in taps)  # pyright: ignore[reportReturnType]


def _depthwise_forward(x: jax.Array, kernel: jax.Array, stride: int):
    return _depthwise(x, kernel, stride), (x, kernel)


def _depthwise_backward(stride: int, saved: tuple[jax.Array, jax.Array], upstream: jax.Array):
    x, kernel = saved
    height, width = kernel.shape[:2]
    products = [tap * upstream for _, _, tap in _taps(x, height, width, (stride, stride))]
    # Stacked before they are summed: one reduction for all of the kernel's entries.
    sums = jnp.stack(products).sum((1, 2, 3))
    # Full correlation of the upstream gradient, dilated by the stride, with the kernel turned
    # around.
    reach = []
    for axis, size in ((1, height), (2, width)):
        behind = x.shape[axis] - 1 - (upstream.shape[axis] - 1) * stride
        reach.append((size - 1, behind, stride - 1))
    spread = lax.pad(upstream, jnp.zeros((), x.dtype), ((0, 0, 0), *reach, (0, 0, 0)))
    return _depthwise(spread, kernel[::-1, ::-1], 1), sums.reshape(kernel.shape)


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _taps(
    x: jax.Array, height: int, width: int, strides: tuple[int, int]
) -> list[tuple[int, int, jax.Array]]:
    """Lists (i, j, the pixels that kernel entry [i, j] meets) of a kernel of this size."""
    taps = []
    for i in range(height):
        row = _shifted(x, i, height, strides[0], axis=1)
        for j in range(width):
            taps.append((i, j, _shifted(row, j, width, strides[1], axis=2)))
    return taps


def _windows(x: jax.Array, size: int, stride: int, axis: int) -> jax.Array:
    """Stacks all windows of `size` along `axis`, before the trailing window and channel axes.

    One axis at a time, so that the transposed pass adds 2 k shifted slices instead of k * k.
    """
    return jnp.stack([_shifted(x, i, size, stride, axis) for i in range(size)], axis=3)


def _shifted(x: jax.Array, offset: int, size: int, stride: int, axis: int) -> jax.Array:
    """Slices the positions that entry `offset` of a window of `size` meets: every stride-th."""
    return lax.slice_in_dim(x, offset, x.shape[axis] - size + 1 + offset, stride, axis)
