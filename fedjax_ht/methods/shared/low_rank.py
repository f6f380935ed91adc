"""Compression of messages by singular value decomposition: FedKD's, for any pytree of arrays.

An array is taken as S matrices [M, N] and sent as their first k singular components (u_j, s_j,
v_j), S k (M + N + 1) numbers; or whole, where that is no more. Vectors are sent whole. The form
says how arrays are cut into matrices:

    paper:     an array [..., O] is one matrix [M, O], a convolution's kernel [h, w, I, O] being
               [h w I, O]; arrays sent whole are sent as they are
    released:  (HtFLlib) a convolution's kernel is I O matrices [h, w] with one k for all, by the
               sum of their energies, other arrays as above; arrays sent whole have lost their last
               components all the same
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked, dense

Form = Literal["paper", "released"]


class LowRank(NamedTuple):
    """One array's message: its components or the whole array, by their masks.

    Attributes:
      components: Masked [min(M, N), S, M + 1 + N], rows (u_j, s_j, v_j) of which the first k are
        sent; () for a vector.
      whole: the array itself under one mask.
    """

    components: Masked | tuple[()]
    whole: Masked


def compress(tree: PyTree, energy: jax.Array | float, form: Form = "paper") -> PyTree:
    """Compresses every array to the smallest rank that keeps a share of its energy.

    Args:
      tree: a pytree of arrays.
      energy: share of an array's squared singular values, float scalar. 1 keeps all components, so
        that every array is sent whole; but an array of zeros has none. Where a program is traced
        with Python's 1.0, the paper's form decomposes nothing.
      form: the rule that cuts arrays into matrices, see the module's docstring.

    Returns:
      The tree with a `LowRank` for every array.
    """
    return jax.tree.map(lambda x: _compress(x, energy, form), tree)


def decompress(tree: PyTree, form: Form = "paper") -> PyTree:
    """Rebuilds the arrays of a message that `compress` made with the same form."""
    return jax.tree.map(lambda message: _decompress(message, form), tree, is_leaf=_is_low_rank)


def send_nothing(tree: PyTree, form: Form = "paper") -> PyTree:
    """Makes a message of the structure of `compress`'s that sends nothing."""
    shapes = jax.eval_shape(lambda tree: compress(tree, 1.0, form), tree)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def send_whole(tree: PyTree, whole: PyTree) -> PyTree:
    """Makes a message that sends arrays uncompressed.

    Args:
      tree: a message of `compress`, whose structure the new one has.
      whole: the arrays to send.
    """

    def uncompressed(message: LowRank, value: jax.Array) -> LowRank:
        components = message.components
        if components:
            components = components._replace(mask=jnp.zeros_like(components.mask))
        return LowRank(components, Masked(value, jnp.array(True), FIRST_ROWS))

    return jax.tree.map(uncompressed, tree, whole, is_leaf=_is_low_rank)


def _is_low_rank(x) -> bool:
    return isinstance(x, LowRank)


def as_matrices(x: jax.Array, form: Form) -> jax.Array:
    """Returns the matrices [S, M, N] of an array of at least two axes."""
    if form == "released" and x.ndim == 4:
        return jnp.moveaxis(x, (0, 1), (2, 3)).reshape(-1, *x.shape[:2])
    return x.reshape(1, -1, x.shape[-1])


def from_matrices(matrices: jax.Array, shape: tuple[int, ...], form: Form) -> jax.Array:
    """Inverts `as_matrices`: returns the array of this shape."""
    if form == "released" and len(shape) == 4:
        return jnp.moveaxis(matrices.reshape(*shape[2:], *shape[:2]), (2, 3), (0, 1))
    return matrices.reshape(shape)


def _compress(x: jax.Array, energy: jax.Array | float, form: Form) -> LowRank:
    if x.ndim < 2:
        return LowRank((), Masked(x, jnp.array(True), FIRST_ROWS))
    if form == "paper" and isinstance(energy, float) and energy >= 1:
        # A decomposition of a matrix of low rank has no gradient, which an attacker of the message
        # needs (`experiments/leaks`).
        rows = jax.eval_shape(lambda: _compress(x, jnp.float32(1), form)).components.values
        values, mask = jnp.zeros(rows.shape, rows.dtype), jnp.zeros(rows.shape[0], bool)
        return LowRank(Masked(values, mask, FIRST_ROWS), Masked(x, jnp.any(x != 0), FIRST_ROWS))
    # [S, M, R], [S, R], [S, N, R]
    left, values, right = jax.vmap(singular_components)(as_matrices(x, form))
    squares = jnp.square(values).sum(0)
    # The energy lost by ending before component j: each a sum by itself, so that it is exact where
    # little is lost.
    tail = jnp.where(jnp.tri(len(squares), dtype=bool).T, squares, 0).sum(1)
    kept = (tail > (1 - energy) * tail[0]) | ((energy >= 1) & (tail[0] > 0))
    components = jnp.moveaxis(jnp.concatenate([left, values[:, None], right], axis=1), 2, 0)
    whole = kept.sum() * components[0].size >= x.size
    value = x
    if form == "released":  # cut even where it is sent whole
        value = _rebuild(Masked(components, kept), x.shape, form)
    kept &= ~whole
    components = jnp.where(kept[:, None, None], components, 0)
    return LowRank(Masked(components, kept, FIRST_ROWS), Masked(value, whole, FIRST_ROWS))


def _decompress(message: LowRank, form: Form) -> jax.Array:
    value, whole = message.whole.values, message.whole.mask
    if not message.components:
        return value
    return jnp.where(whole, value, _rebuild(message.components, value.shape, form))


def _rebuild(components: Masked, shape: tuple[int, ...], form: Form) -> jax.Array:
    """Sums components up to the array of this shape."""
    size = jax.eval_shape(lambda: as_matrices(jnp.zeros(shape), form)).shape[1]
    rows = dense(components)  # [R, S, M + 1 + N]
    left, singular, right = rows[..., :size], rows[..., size : size + 1], rows[..., size + 1 :]
    matrices = jnp.einsum("rsm,rsn->smn", singular * left, right, precision="highest")
    return from_matrices(matrices, shape, form)


def singular_components(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decomposes a matrix by singular values, falling, through the smaller Gram matrix.

    This is five times faster than a direct decomposition of a matrix [1600, 512] on CPU; values
    below some 3e-4 of the largest are lost in rounding. The sign of a pair of vectors is fixed: in
    the vector on the smaller side the largest entry by size is positive.

    Args:
      matrix: float [M, N], R = min(M, N).

    Returns:
      left float [M, R], values float [R], right float [N, R], with matrix = left * values @
      right.T.
    """
    if matrix.shape[0] < matrix.shape[1]:
        left, values, right = singular_components(matrix.T)
        return right, values, left
    gram = jnp.matmul(matrix.T, matrix, precision="highest")
    vectors = jnp.linalg.eigh(gram)[1][:, ::-1]
    right = vectors * jnp.where(vectors.max(0) >= -vectors.min(0), 1, -1)
    scaled = jnp.matmul(matrix, right, precision="highest")
    values = jnp.linalg.norm(scaled, axis=0)
    return scaled / jnp.maximum(values, jnp.finfo(matrix.dtype).tiny), values, right
