"""The transposed two-dimensional convolution, by the transpose of `conv2d`.

It is a matrix product and shifted sums, therefore, with the gradients of these.
"""

import jax
from jaxtyping import Float

from fedjax_ht.ops.arrays import Array
from fedjax_ht.ops.conv import conv2d


def conv_transpose2d(
    x: Float[Array, "B H W C"],
    kernel: Float[Array, "h w C O"],
    stride: int = 1,
    padding: int = 0,
) -> Float[Array, "B P Q O"]:
    """Convolves transposed with one stride and one padding, as torch's ConvTranspose2d does.

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
    out = jax.ShapeDtypeStruct((batch, out_height, out_width, kernel.shape[-1]), x.dtype)

    def convolve(y):
        # A function that may be either form has no transpose.
        return conv2d(y, kernel.swapaxes(-1, -2), stride, padding, lowering="patches")

    (y,) = jax.linear_transpose(convolve, out)(x)
    return y
