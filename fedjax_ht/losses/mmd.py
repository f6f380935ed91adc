"""Maximum mean discrepancy between two samples, by a mixture of RBF kernels."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_ht.ops import squared_distance
from fedjax_ht.ops.arrays import Array

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # FedKTL's released code


def kernel_means(
    x: Float[Array, "B H"],
    y: Float[Array, "B H"],
    weights: Float[Array, " B"],
    bandwidths: Float[Array, " A"] | Sequence[float],
) -> Float[Array, " A"]:
    """Computes the mean of each kernel over pairs, sum_jk p_j p_k exp(-|x_j - y_k|^2 / (2 a)).

    Args:
      x, y: float [B, H].
      weights: float [B] that sum to 1, the p of the rows of both.
      bandwidths: float [A], a, in units of squared distance.

    Returns:
      float32 [A].
    """
    squared = squared_distance(x, y)
    kernels = jnp.exp(-0.5 * squared / jnp.asarray(bandwidths)[:, None, None])
    return jnp.einsum("j,ajk,k->a", weights, kernels, weights)


def mmd_loss(
    x: Float[Array, "B H"],
    y: Float[Array, "B H"],
    mask: Bool[Array, " B"],
    bandwidths: Float[Array, " A"] | Sequence[float] = BANDWIDTHS,
) -> Float[Array, ""]:
    """Computes the squared maximum mean discrepancy of two samples (FedKTL Eq. 3).

    It is the biased estimate, with its diagonal.

    Args:
      x, y: float [B, H], two samples of one size.
      mask: bool [B], the real rows of both.
      bandwidths: float [A]; the kernel is the sum over a of exp(-d^2 / (2 a)).

    Returns:
      Scalar; 0 where the mask is empty.

    Example:
      >>> x, everyone = jnp.array([[0.0], [1.0]]), jnp.array([True, True])
      >>> fl.losses.mmd_loss(x, x, everyone)  # equal samples
      Array(0., dtype=float32)
      >>> bool(fl.losses.mmd_loss(x, x + 5.0, everyone) > 0.1)
      True
    """
    weights = mask / jnp.maximum(mask.sum(), 1)
    # Rows outside the mask may be NaN, and zero times NaN is NaN.
    x, y = jnp.where(mask[:, None], x, 0), jnp.where(mask[:, None], y, 0)
    within = kernel_means(x, x, weights, bandwidths) + kernel_means(y, y, weights, bandwidths)
    return jnp.sum(within - 2 * kernel_means(x, y, weights, bandwidths))
