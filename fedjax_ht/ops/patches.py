"""Convolutions without padding as matrix products of image patches.

On a CPU a kernel with few input and output channels computes several neighbouring outputs at once
(`columns_at_once`). Their patches overlap, so that fewer numbers are copied, and the product is
wider, at the price of multiplying by some zeros. The network of PyTorch's tutorial, whose
convolutions have 6 and 16 features, trains a third faster.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from fedjax_ht.ops.arrays import Array
from fedjax_ht.ops.products import product

LARGE = 6 << 20  # bytes of a batch's patches up to which they are made for all images at once
# bytes of patches that a core's own cache serves; twice the second level of a Zen 4
CACHED = 2 << 20
# scope that tells metrics.flops how many of a product's factors are not zeros
MULTIPLIED = "multiplied_{}_of_{}"
# kernel entries up to which all patches are cut at once: one GPU kernel fewer, as fast on CPU
AT_ONCE = 9


def convolve_in_cache(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w C O"], stride: int
) -> Float[Array, "B P Q O"]:
    """Convolves without padding, by products whose patches stay in the processor's cache."""
    batch, height, width, _ = x.shape
    out_height = (height - kernel.shape[0]) // stride + 1
    out_width = (width - kernel.shape[1]) // stride + 1
    columns = columns_at_once(out_width, kernel.shape[2], kernel.shape[3])
    widened = _widen(kernel, columns, stride)
    strides = (stride, stride * columns)
    scope = MULTIPLIED.format(kernel.shape[1], widened.shape[1])

    def convolve(x):
        with jax.named_scope(scope):  # here, since the body of `lax.map` has a scope of its own
            return convolve_patches(x, widened, strides)

    # Bytes of an image's float32 patches.
    size = 4 * out_height * (out_width // columns) * math.prod(widened.shape[:3])
    images = images_at_once(batch, size)
    if images < batch:
        # The gradient recomputes a block's patches, which is faster than loading them from memory.
        # Inside a loop XLA cannot undo that, so that no barrier is needed.
        convolve = jax.checkpoint(convolve, prevent_cse=False)
    out = in_blocks(convolve, x, images)
    # The product's columns are `columns` neighbouring outputs, already in order: nothing is copied.
    return out.reshape(batch, out_height, out_width, kernel.shape[3])


def columns_at_once(out_width: int, channels: int, features: int) -> int:
    """Returns how many neighbouring outputs of a row to compute as one, a divisor of the row.

    Measured on a Zen 4 at batches of 10 and 50 (benchmarks/results/conv_columns_cpu.md): it pays
    for the few channels of first layers, and costs more than it saves for products that are large
    anyway.
    """
    if features > 32 or channels * features > 256:
        return 1
    most = 4 if features <= 8 else 2
    return math.gcd(out_width, most)


def _widen(kernel: Array, columns: int, stride: int) -> Array:
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


def in_blocks(convolve: Callable[[Array], Array], x: Array, images: int) -> Array:
    """Convolves `images` images at a time, a divisor of the batch."""
    if images == len(x):
        return convolve(x)
    out = lax.map(convolve, x.reshape(-1, images, *x.shape[1:]))
    return out.reshape(len(x), *out.shape[2:])


def images_at_once(batch: int, size: int) -> int:
    """Returns how many of a batch's images to convolve at a time.

    Args:
      batch: number of images.
      size: bytes of one image's patches.

    Returns:
      The batch if it is small, else its largest divisor whose patches stay in the cache, or 1.
    """
    if batch * size <= LARGE:
        return batch
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    return max(n for n in divisors if n == 1 or n * size <= CACHED)


def convolve_patches(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w C O"], strides: tuple[int, int]
) -> Float[Array, "B P Q O"]:
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
def convolve_depthwise(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w 1 C"], stride: int
) -> Float[Array, "B P Q C"]:
    """Convolves each channel separately, without padding, as a sum of shifted products.

    So is its input gradient, four times faster than the sum of padded slices that JAX derives.
    """
    height, width = kernel.shape[:2]
    taps = _taps(x, height, width, (stride, stride))  # at least one, so that the sum is an array
    return sum(tap * kernel[i, j, 0] for i, j, tap in taps)  # pyright: ignore[reportReturnType]


def _depthwise_forward(x: Array, kernel: Array, stride: int):
    return convolve_depthwise(x, kernel, stride), (x, kernel)


def _depthwise_backward(stride: int, saved: tuple[Array, Array], upstream: Array):
    x, kernel = saved
    height, width = kernel.shape[:2]
    products = [tap * upstream for _, _, tap in _taps(x, height, width, (stride, stride))]
    # Stacked before they are summed: one reduction for all of the kernel's entries.
    sums = jnp.stack(products).sum((1, 2, 3))
    # Full correlation of the upstream gradient, dilated by the stride, with the flipped kernel.
    reach = []
    for axis, size in ((1, height), (2, width)):
        behind = x.shape[axis] - 1 - (upstream.shape[axis] - 1) * stride
        reach.append((size - 1, behind, stride - 1))
    spread = lax.pad(upstream, jnp.zeros((), x.dtype), ((0, 0, 0), *reach, (0, 0, 0)))
    return convolve_depthwise(spread, kernel[::-1, ::-1], 1), sums.reshape(kernel.shape)


convolve_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _taps(
    x: Array, height: int, width: int, strides: tuple[int, int]
) -> list[tuple[int, int, Array]]:
    """Lists (i, j, the pixels that kernel entry [i, j] meets) of a kernel of this size."""
    taps = []
    for i in range(height):
        row = _shifted(x, i, height, strides[0], axis=1)
        for j in range(width):
            taps.append((i, j, _shifted(row, j, width, strides[1], axis=2)))
    return taps


def _windows(x: Array, size: int, stride: int, axis: int) -> Array:
    """Stacks all windows of `size` along `axis`, before the trailing window and channel axes.

    One axis at a time, so that the transposed pass adds 2 k shifted slices instead of k * k.
    """
    return jnp.stack([_shifted(x, i, size, stride, axis) for i in range(size)], axis=3)


def _shifted(x: Array, offset: int, size: int, stride: int, axis: int) -> Array:
    """Slices the positions that entry `offset` of a window of `size` meets: every stride-th."""
    return lax.slice_in_dim(x, offset, x.shape[axis] - size + 1 + offset, stride, axis)
