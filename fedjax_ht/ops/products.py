"""Matrix products in JAX's configured precision, and Euclidean distances.

A product is of float32, or of bfloat16 factors with float32 sums. The gradients of distances stay
finite if two points coincide.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Num

from fedjax_ht.ops.arrays import Array


def product(a: Num[Array, "*rows K"], b: Float[Array, "K N"]) -> Float[Array, "*rows N"]:
    """Computes a @ b: float32 [..., K] and [K, N] -> float32 [..., N], and its gradients likewise.

    Under `jax.default_matmul_precision("bfloat16")` the factors are rounded to bfloat16 and the
    sums stay float32, on every kind of device. XLA itself treats that setting as a hint, which a
    GPU reads as TF32 and a CPU ignores. Weights, activations, sums and updates keep float32.
    """
    rows, (ins, outs) = a.reshape(-1, a.shape[-1]), b.shape
    config: Any = jax.config  # declares none of its options
    if config.jax_default_matmul_precision == "bfloat16":
        return _rounded(rows, b).reshape(*a.shape[:-1], outs)
    if jax.default_backend() == "cpu" and outs < ins and 4 * outs <= rows.shape[0]:
        return _narrow(rows, b).reshape(*a.shape[:-1], outs)
    return a @ b


def _narrow(a: Num[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    """Multiplies many rows by a tall matrix, such as a convolution's patches by its kernel.

    The product is by b's transpose, so that b's gradient is also [N, K]. XLA's CPU product takes up
    to twice as long for [K, N], whose long side is not contiguous in memory. It does not pay for a
    linear layer's few rows: the update would read the transposed gradient against memory order.
    """
    # Without the barrier XLA would undo both transposes.
    return lax.dot_general(a, lax.optimization_barrier(b.T), (((1,), (1,)), ((), ())))


@jax.custom_vjp
def _rounded(a: Num[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return _multiply(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _multiply(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _forward(a: Array, b: Array):
    # Residuals for the gradient are stored rounded, at half the size.
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _multiply(a, b), (a, b)


def _backward(saved: tuple[Array, Array], upstream: Array):
    a, b = saved
    upstream = upstream.astype(jnp.bfloat16)
    return _multiply(upstream, b.T), _multiply(a.T, upstream)


_rounded.defvjp(_forward, _backward)


def safe_norm(squared: Float[Array, "..."], epsilon: float = 1e-12) -> Float[Array, "..."]:
    """Returns sqrt(max(squared, epsilon)), whose gradient at zero distance is zero, not NaN."""
    return jnp.sqrt(jnp.maximum(squared, epsilon))


def squared_distance(a: Float[Array, "M K"], b: Float[Array, "N K"]) -> Float[Array, "M N"]:
    """Computes squared Euclidean distances between rows: float [M, K], [N, K] -> [M, N], >= 0.

    Expands the square, so that the work is one matrix product. Rounding may push a tiny square
    below zero; it is clipped. Squares and products are always in full float32: a cancelling sum has
    no digits to spare for TF32 or bfloat16.
    """
    a, b = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (a, b))
    squared = (
        jnp.sum(a * a, -1)[:, None]
        + jnp.sum(b * b, -1)[None, :]
        - 2.0 * jnp.matmul(a, b.T, precision="highest")
    )
    return jnp.maximum(squared, 0.0)


def pairwise_distance(a: Float[Array, "M K"], b: Float[Array, "N K"]) -> Float[Array, "M N"]:
    """Computes Euclidean distances between rows: float [M, K], [N, K] -> [M, N]."""
    return safe_norm(squared_distance(a, b))
