"""Transposed two-dimensional convolution: the transpose of `conv2d`, and so a matrix product and
shifted sums."""

import jax

from fedjax_ht.ops.conv import conv2d


def conv_transpose2d(
    x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0
) -> jax.Array:
    """Every pixel (p, q) adds x[p, q] @ kernel[i, j] to pixel (p stride + i - padding, q stride + j
    - padding) of the output, as in torch's ConvTranspose2d.

    Args:
      x: float [B, H, W, C].
      kernel: float [h, w, C, O].
      stride: in pixels, for both axes.
      padding: what is cut off at every edge, in pixels.

    Returns:
      float [B, (H - 1) stride - 2 padding + h, (W - 1) stride - 2 padding + w, O].
    """
    batch, height, width, _ = x.shape
    lengths = (
        (n - 1) * stride - 2 * padding + size for n, size in zip((height, width), kernel.shape)
    )
    out = jax.ShapeDtypeStruct((batch, *lengths, kernel.shape[-1]), x.dtype)
    (y,) = jax.linear_transpose(lambda y: conv2d(y, kernel.swapaxes(-1, -2), stride, padding), out)(
        x
    )
    return y
