"""Messages compressed by singular value decomposition: FedKD's, for any pytree of arrays.

An array [..., O] is taken as a matrix [M, O] (a convolution's kernel [h, w, I, O] as [h w I, O]) and sent as its first
k singular components (u_j, s_j, v_j), k (M + O + 1) numbers; or whole, where that is no more. Vectors are sent whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.method import PyTree
from fedjax_ht.core.wire import Masked


class LowRank(NamedTuple):
    """One array as it is sent; the masks say in which form.

    Attributes:
      components: Masked [min(M, O), M + 1 + O], rows (u_j, s_j, v_j) of which the first k are sent; () for a vector.
      whole: the array itself under one mask.
    """

    components: Masked | tuple
    whole: Masked


def compress(tree: PyTree, energy: jax.Array) -> PyTree:
    """Every array as `LowRank` of the smallest rank that keeps a share `energy` of its squared singular values.

    An energy of 1 keeps every component that is not zero; an array of zeros has none.
    """
    return jax.tree.map(lambda x: _compress(x, energy), tree)


def decompress(tree: PyTree) -> PyTree:
    """The arrays that `compress` stands for."""
    return jax.tree.map(_decompress, tree, is_leaf=_is_low_rank)


def send_whole(tree: PyTree, whole: PyTree) -> PyTree:
    """A message of the structure of `tree`, as `compress` makes it, that sends the arrays `whole` uncompressed."""

    def one(message: LowRank, value: jax.Array) -> LowRank:
        components = message.components and Masked(message.components.values, jnp.zeros_like(message.components.mask))
        return LowRank(components, Masked(value, jnp.array(True)))

    return jax.tree.map(one, tree, whole, is_leaf=_is_low_rank)


def _is_low_rank(x) -> bool:
    return isinstance(x, LowRank)


def _compress(x: jax.Array, energy: jax.Array) -> LowRank:
    if x.ndim < 2:
        return LowRank((), Masked(x, jnp.array(True)))
    matrix = x.reshape(-1, x.shape[-1])
    left, values, right = singular_components(matrix)
    # How much is lost by ending before component j, summed from the small end: exact where little is lost.
    tail = jnp.cumsum(jnp.square(values)[::-1])[::-1]
    kept = tail > (1 - energy) * tail[0]
    components = jnp.concatenate([left.T, values[:, None], right.T], axis=1)
    whole = kept.sum() * components.shape[1] >= matrix.size
    kept &= ~whole
    return LowRank(Masked(jnp.where(kept[:, None], components, 0), kept), Masked(x, whole))


def _decompress(message: LowRank) -> jax.Array:
    value, whole = message.whole
    if not message.components:
        return value
    rows = jnp.where(message.components.mask[:, None], message.components.values, 0)
    length = value.size // value.shape[-1]
    left, singular, right = rows[:, :length], rows[:, length : length + 1], rows[:, length + 1 :]
    product = jnp.matmul((singular * left).T, right, precision="highest")
    return jnp.where(whole, value, product.reshape(value.shape))


def singular_components(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Singular value decomposition, by falling singular value, through the smaller Gram matrix.

    Five times faster here than a direct one for a matrix [1600, 512] on CPU; values below some 3e-4 of the largest are
    lost in rounding. The sign of a pair of vectors is fixed by the largest entry of the one on the smaller side.

    Args:
      matrix: float [M, N], R = min(M, N).

    Returns:
      left float [M, R], values float [R], right float [N, R], with matrix = left * values @ right.T.
    """
    if matrix.shape[0] < matrix.shape[1]:
        left, values, right = singular_components(matrix.T)
        return right, values, left
    gram = jnp.matmul(matrix.T, matrix, precision="highest")
    vectors = jnp.linalg.eigh(gram)[1][:, ::-1]
    largest = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=0, keepdims=True), axis=0)
    right = vectors * jnp.sign(largest)
    scaled = jnp.matmul(matrix, right, precision="highest")
    values = jnp.linalg.norm(scaled, axis=0)
    return scaled / jnp.maximum(values, jnp.finfo(matrix.dtype).tiny), values, right
