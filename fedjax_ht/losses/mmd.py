"""Maximum mean discrepancy between two samples, by a mixture of RBF kernels."""

import jax
import jax.numpy as jnp

from fedjax_ht.ops import squared_distance

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # FedKTL's released code


def kernel_means(
    x: jax.Array, y: jax.Array, weights: jax.Array, bandwidths: jax.Array
) -> jax.Array:
    """Mean of each kernel over all pairs: sum_jk p_j p_k exp(-|x_j - y_k|^2 / (2 a)). float32
    [len(bandwidths)].

    Args:
      x, y: float [B, H].
      weights: float [B] that sum to 1, of the rows of both.
      bandwidths: float [A], in units of squared distance.
    """
    squared = squared_distance(x, y)
    kernels = jnp.exp(-0.5 * squared / jnp.asarray(bandwidths)[:, None, None])
    return jnp.einsum("j,ajk,k->a", weights, kernels, weights)


def mmd_loss(
    x: jax.Array, y: jax.Array, mask: jax.Array, bandwidths: jax.Array = BANDWIDTHS
) -> jax.Array:
    """Squared maximum mean discrepancy, the biased estimate with its diagonal, summed over kernels
    (FedKTL Eq. 3).

    Args:
      x, y: float [B, H], two samples of one size.
      mask: bool [B], the real rows of both; 0 where there is none.
      bandwidths: float [A]; the kernel is the sum of exp(-d^2 / (2 a)).
    """
    weights = mask / jnp.maximum(mask.sum(), 1)
    x, y = (jnp.where(mask[:, None], rows, 0) for rows in (x, y))
    within = kernel_means(x, x, weights, bandwidths) + kernel_means(y, y, weights, bandwidths)
    return jnp.sum(within - 2 * kernel_means(x, y, weights, bandwidths))
