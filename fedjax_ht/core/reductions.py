"""Sums over the axis of clients of stacked arrays, at the speed of memory."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.method import PyTree


def weighted_sum(stacked: PyTree, weights: jax.Array) -> PyTree:
    """Sums the rows of stacked arrays, each times its weight.

    Args:
      stacked: floats [P, ...], a row a client.
      weights: float [P, ...] of at least 0, whose axes are the first ones of every array; axes of
        length 1 are broadcast. Entries of weight zero are never read and may be NaN.

    Returns:
      The sums [...], in the arrays' own dtypes; the order of addition is that of the rows.
    """
    # XLA for CPU reduces a leading axis with a stride of a whole model between two reads: 50
    # models of 1.6 million numbers took 0.6 to 8.5 s, and take 0.02 to 0.1 s one after another.
    # On other platforms the sum is one fused reduction.
    return lax.platform_dependent(stacked, weights, cpu=_one_by_one, default=_fused)


def _one_by_one(stacked: PyTree, weights: jax.Array) -> PyTree:
    def row(x, i):
        return lax.dynamic_index_in_dim(x, i, keepdims=False)

    def add(i, totals):
        share = row(weights, i)
        return jax.tree.map(lambda total, x: total + _weighted(row(x, i), share), totals, stacked)

    forms = jax.eval_shape(_fused, stacked, weights)
    # Sums are made in float32, whatever the arrays' dtypes.
    zeros = jax.tree.map(lambda form: jnp.zeros(form.shape, jnp.float32), forms)
    totals = lax.fori_loop(0, len(weights), add, zeros)
    return jax.tree.map(lambda total, form: total.astype(form.dtype), totals, forms)


def _fused(stacked: PyTree, weights: jax.Array) -> PyTree:
    def total(x):
        return jnp.sum(_weighted(x, weights), axis=0).astype(x.dtype)

    return jax.tree.map(total, stacked)


def _weighted(x: jax.Array, weights: jax.Array) -> jax.Array:
    weights = weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim))
    # `where` besides the product: zero times NaN is NaN.
    return jnp.where(weights > 0, x, 0) * weights
