"""Types of arrays and pytrees, and functions of pytrees: take entries, make zeros, select between
two, join several."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

PyTree = Any

if TYPE_CHECKING:
    Array = jax.Array
else:  # a form of a pytree has forms of arrays, and jax takes NumPy's arrays as well
    Array = jax.Array | np.ndarray | jax.ShapeDtypeStruct
"""An array, for signatures and fields that give dtype and axes: `Float[Array, "C D"]`.

The axes of this package:

* B: samples of a batch. N: samples of a data set, stored once for all clients.
* C: classes. K: features. D: any row, such as features that are summed by class.
* P: rows of a bucket's schedule and of its uplinks, one a participant, the last ones padding; on
  each device as many.
* M: rows that a server trains on.
* `samples`: entries of a client's split, padding last. `chunks lanes`: the two axes of P, see
  `executor.Schedule`. `devices`: of the mesh.
* `*clients`: no axis where a value is one client's, and one where clients are stacked; all fields
  of one value have the same.
* `*m` and `*rest`: of a `wire.Masked`.

A function of one client has no axis of clients: under `vmap` it is checked client by client.
"""

HostArray = Array | np.ndarray
"""An array of a field that is filled on the host: NumPy's there, and a `jax.Array` in the programs
that it is an argument of."""

HostNumber = HostArray | np.integer | np.bool
"""A number of a field that is filled on the host, or an array of one for each client."""


def take(tree: PyTree, index: Any) -> PyTree:
    """Takes the entries `index` of every array, NumPy's or jax's.

    Args:
      tree: arrays that have the same leading axes.
      index: the index of every array, as in brackets behind it: a number, a slice, an array, or a
        tuple.
    """
    return jax.tree.map(lambda x: x[index], tree)


def zeros_of(form: PyTree) -> PyTree:
    """Returns zeros of the shapes and dtypes of arrays or of `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def join_trees(combine: Callable[[Sequence[Any]], Any], trees: Sequence[PyTree]) -> PyTree:
    """Joins pytrees of one structure, array by array.

    Args:
      combine: a function of the arrays that stand at one place, in the order of `trees`:
        `np.stack`, `jnp.concatenate` and the like.
      trees: pytrees of one structure, one or more.
    """
    return jax.tree.map(lambda *arrays: combine(arrays), *trees)


def select(condition: Bool[HostNumber, ""], yes: PyTree, no: PyTree) -> PyTree:
    """Selects `yes` if a scalar condition holds, else `no`, leaf by leaf, including typed keys."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def strongly_typed(tree: PyTree) -> PyTree:
    """Fixes the dtypes of arrays inside a trace. Those of `jnp.full(3, 0.5)` are weak, and a round
    that takes such a state and returns another would be compiled twice."""

    def fixed(x):
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x

    return jax.tree.map(fixed, tree)
