"""Batch normalisation in two passes over the batch: its statistics, and the gradient's sums.

On a GPU, each pass over the batch costs a kernel and the wait for it. JAX's own derivatives take
four such passes forward and six backward.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from fedjax_ht.ops.arrays import Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def batch_norm(
    x: Float[Array, "B ... C"],
    scale: Float[Array, " C"],
    bias: Float[Array, " C"],
    real: Bool[Array, " B"],
    epsilon: float,
) -> tuple[Float[Array, "B ... C"], Float[Array, " C"], Float[Array, " C"]]:
    """Normalises all samples of a batch by the statistics of its real ones.

    After Ioffe and Szegedy, ICML 2015, Algorithm 1.

    Args:
      x: float [B, ..., C].
      scale, bias: learned scale and bias, float [C].
      real: bool [B]; False marks padding, whose values are not read for the statistics.
      epsilon: a small number, added to the variance.

    Returns:
      The normalised batch, float [B, ..., C]; mean and biased variance per channel, float [C] each,
      0 if no sample is real. Gradients go through all three.
    """
    return _forward(x, scale, bias, real, epsilon)[0]


def _forward(x, scale, bias, real, epsilon):
    rows, count = _real_rows(x, real)
    # Squares are summed around one of the values, to avoid cancellation if the mean is far from
    # zero.
    centre = x[(jnp.argmax(real), *(0,) * (x.ndim - 2))]
    shifted = jnp.where(rows, x - centre, 0)
    # Both sums in one reduction, which is one pass over the batch.
    sums = jnp.stack([shifted, jnp.square(shifted)]).sum(tuple(range(1, x.ndim)))
    offset, square = sums / count
    mean = jnp.where(real.any(), centre + offset, 0)
    var = jnp.maximum(square - jnp.square(offset), 0)
    inverse = lax.rsqrt(var + epsilon)
    return ((x - mean) * (inverse * scale) + bias, mean, var), (x, scale, real, mean, inverse)


def _backward(epsilon, saved, upstream):
    x, scale, real, mean, inverse = saved
    dy, dmean, dvar = upstream
    rows, count = _real_rows(x, real)
    unit = (x - mean) * inverse
    by_bias, by_scale = jnp.stack([dy, dy * unit]).sum(tuple(range(1, x.ndim)))
    # Real samples move the outputs of all through mean and variance; padding does not.
    through_mean = dmean - scale * inverse * by_bias
    through_var = 2 * dvar / inverse - scale * inverse * by_scale
    through = (through_mean + unit * through_var) / count
    return dy * (scale * inverse) + jnp.where(rows, through, 0), by_scale, by_bias, None


def _real_rows(x: Array, real: Array) -> tuple[Array, Array]:
    """Returns the mask shaped to select from x, and the number of values of a channel, >= 1."""
    rows = real.reshape(-1, *(1,) * (x.ndim - 1))
    count = real.sum() * math.prod(x.shape[1:-1])
    return rows, jnp.maximum(count, 1)


batch_norm.defvjp(_forward, _backward)
