"""Sums and sorts over the client axis of stacked arrays, at memory speed."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float, Num

from fedjax_ht.core.trees import Array, PyTree

PIECE = 1024  # columns per piece, so that its rows stay in a core's cache while sorted


def weighted_sum(stacked: PyTree, weights: Num[Array, "P ..."]) -> PyTree:
    """Returns the weighted sum over the rows of stacked arrays.

    Args:
      stacked: floats [P, ...], one row per client.
      weights: float [P, ...] of at least 0, whose axes are the leading axes of every array; axes of
        length 1 are broadcast. Entries with weight zero are never read and may be NaN.

    Returns:
      The sums [...], in the arrays' own dtypes; rows are added in order.
    """
    # XLA for CPU reduces a leading axis with a stride of a whole model between two reads: 50
    # models of 1.6 million numbers took 0.6 to 8.5 s, and take 0.02 to 0.1 s if added one by one.
    # On other platforms the sum is one fused reduction.
    return lax.platform_dependent(stacked, weights, cpu=_one_by_one, default=_fused)


def _one_by_one(stacked: PyTree, weights: Num[Array, "P ..."]) -> PyTree:
    def row(x, i):
        return lax.dynamic_index_in_dim(x, i, keepdims=False)

    def add(i, totals):
        share = row(weights, i)
        return jax.tree.map(lambda total, x: total + _weighted(row(x, i), share), totals, stacked)

    forms = jax.eval_shape(_fused, stacked, weights)
    # Sums accumulate in float32, whatever the arrays' dtypes.
    zeros = jax.tree.map(lambda form: jnp.zeros(form.shape, jnp.float32), forms)
    totals = lax.fori_loop(0, len(weights), add, zeros)
    return jax.tree.map(lambda total, form: total.astype(form.dtype), totals, forms)


def _fused(stacked: PyTree, weights: Num[Array, "P ..."]) -> PyTree:
    def total(x):
        return jnp.sum(_weighted(x, weights), axis=0).astype(x.dtype)

    return jax.tree.map(total, stacked)


def _weighted(x: Num[Array, "..."], weights: Num[Array, "..."]) -> Num[Array, "..."]:
    weights = weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim))
    # `where` in addition to the product: zero times NaN is NaN.
    return jnp.where(weights > 0, x, 0) * weights


def sorted_rows(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Sorts each column of stacked arrays over the clients.

    Args:
      x: float [P, ...] without NaN.

    Returns:
      `jnp.sort(x, axis=0)`.
    """
    # XLA for CPU sorts one column at a time, with a stride of a whole model: 50 uploads of 163,000
    # numbers take 1.9 s, and 0.2 s if whole rows are compared.
    return lax.platform_dependent(x, cpu=_sorted_in_pieces, default=_sorted)


def _sorted(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.sort(x, axis=0)


def _sorted_in_pieces(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    if x.size == 0:
        return x
    clients, columns = len(x), math.prod(x.shape[1:])
    width = min(PIECE, columns)
    pieces = -(-columns // width)  # rounded up
    margin = pieces * width - columns
    padded = jnp.pad(x.reshape(clients, columns), ((0, 0), (0, margin)))

    def piece(i):
        return lax.dynamic_slice_in_dim(padded, i * width, width, axis=1)

    ordered = lax.map(lambda i: _bitonic_sort(piece(i)), jnp.arange(pieces))
    ordered = jnp.moveaxis(ordered, 0, 1).reshape(clients, pieces * width)
    return ordered[:, :columns].reshape(x.shape)


def _bitonic_sort(x: Float[Array, "P D"]) -> Float[Array, "P D"]:
    """Sorts rows [P, D] over P by Batcher's bitonic network, all columns at once."""
    rows = 1 << (len(x) - 1).bit_length()  # the next power of two; padded rows are sorted last
    ordered = jnp.pad(x, ((0, rows - len(x)), (0, 0)), constant_values=jnp.inf)
    length = 2
    while length <= rows:
        distance = length // 2
        while distance:
            pairs = ordered.reshape(-1, 2, distance, x.shape[1])
            smaller, larger = pairs.min(1), pairs.max(1)
            # Sequences of `length` rows alternately rise and fall: any two form a bitonic one.
            starts = 2 * distance * np.arange(len(pairs))
            rises = (starts & length == 0)[:, None, None]
            first, second = jnp.where(rises, smaller, larger), jnp.where(rises, larger, smaller)
            ordered = jnp.stack([first, second], 1).reshape(rows, x.shape[1])
            distance //= 2
        length *= 2
    return ordered[: len(x)]
