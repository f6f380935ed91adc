"""Euclidean distances with gradients that stay finite where two points meet."""

import jax.numpy as jnp
from jaxtyping import Float

from fedjax_ht.ops.arrays import Array


def safe_norm(squared: Float[Array, "..."], epsilon: float = 1e-12) -> Float[Array, "..."]:
    """Returns sqrt(max(squared, epsilon)), whose gradient at zero distance is zero, not NaN."""
    return jnp.sqrt(jnp.maximum(squared, epsilon))


def squared_distance(a: Float[Array, "M K"], b: Float[Array, "N K"]) -> Float[Array, "M N"]:
    """Computes squared Euclidean distances between rows: float [M, K], [N, K] -> [M, N], >= 0.

    Expands the square, so that the work is one matrix product; rounding may push a tiny square
    below zero, which is cut off. Full float32 products always: a cancelling sum has no digits to
    spare for TF32.
    """
    squared = (
        jnp.sum(a * a, -1)[:, None]
        + jnp.sum(b * b, -1)[None, :]
        - 2.0 * jnp.matmul(a, b.T, precision="highest")
    )
    return jnp.maximum(squared, 0.0)


def pairwise_distance(a: Float[Array, "M K"], b: Float[Array, "N K"]) -> Float[Array, "M N"]:
    """Computes Euclidean distances between rows: float [M, K], [N, K] -> [M, N]."""
    return safe_norm(squared_distance(a, b))
