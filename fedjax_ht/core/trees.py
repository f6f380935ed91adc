"""Takes entries of pytrees of arrays, selects between two such pytrees, and joins several."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any

Array = jax.Array | Any
"""An array of a pytree: a `jax.Array` in compiled programs, on the host also NumPy's or a number,
and in forms a `jax.ShapeDtypeStruct`. Where a field's text says so, () or None stand for no array.
"""


def take(tree: PyTree, index: Any) -> PyTree:
    """Takes the entries `index` of every array, NumPy's or jax's.

    Args:
      tree: arrays that have the same leading axes.
      index: the index of every array, as in brackets behind it: a number, a slice, an array, or a
        tuple.
    """

    def of_array(x):
        return x[index]

    return jax.tree.map(of_array, tree)


def join_trees(combine: Callable[[Sequence[Any]], Any], trees: Sequence[PyTree]) -> PyTree:
    """Joins pytrees of one structure, array by array.

    Args:
      combine: a function of the arrays that stand at one place, in the order of `trees`:
        `np.stack`, `jnp.concatenate` and the like.
      trees: pytrees of one structure, one or more.
    """

    def at_one_place(*arrays):
        return combine(arrays)

    return jax.tree.map(at_one_place, *trees)


def select(condition: jax.Array, yes: PyTree, no: PyTree) -> PyTree:
    """Selects `yes` where a scalar condition holds, else `no`, leaf by leaf, typed keys too."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
