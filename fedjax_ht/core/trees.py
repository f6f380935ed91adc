"""Types of arrays and pytrees, and pytree functions: take entries, make zeros, select, join."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

PyTree = Any

if TYPE_CHECKING:
    Array = jax.Array
else:  # pytrees of shapes have ShapeDtypeStructs, and jax also accepts NumPy arrays
    Array = jax.Array | np.ndarray | jax.ShapeDtypeStruct
"""An array, for annotations with dtype and axes: `Float[Array, "C D"]`.

The axes of this package:

* B: samples of a batch. N: samples of a data set, stored once for all clients.
* C: classes. K: features. D: any row, such as features that are summed by class.
* P: rows of a bucket's schedule and uplinks, one per participant, padding last; each device has as
  many.
* M: rows that a server trains on.
* `samples`: entries of a client's split, padding last. `chunks lanes`: the two axes of P, see
  `executor.Schedule`. `devices`: of the mesh.
* `*clients`: no axis if a value belongs to one client, one axis if clients are stacked; the same
  for all fields of a value.
* `*m` and `*rest`: of a `wire.Masked`.

A function of one client has no client axis: under `vmap` it is checked client by client.
"""

HostArray = Array | np.ndarray
"""An array of a field that is filled on the host: NumPy there, a `jax.Array` inside programs."""

HostNumber = HostArray | np.integer | np.bool
"""A number of a field that is filled on the host, or an array with one number per client."""


def take(tree: PyTree, index: Any) -> PyTree:
    """Indexes every array of a pytree, of NumPy or jax.

    Args:
      tree: arrays with the same leading axes.
      index: the index in x[index]: a number, a slice, an array, or a tuple.
    """
    return jax.tree.map(lambda x: x[index], tree)


def zeros_of(form: PyTree) -> PyTree:
    """Returns zeros with the shapes and dtypes of arrays or `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def join_trees(combine: Callable[[Sequence[Any]], Any], trees: Sequence[PyTree]) -> PyTree:
    """Joins pytrees of the same structure, leaf by leaf.

    Args:
      combine: a function of the corresponding arrays, in the order of `trees`: `np.stack`,
        `jnp.concatenate` and the like.
      trees: one or more pytrees of the same structure.
    """
    return jax.tree.map(lambda *arrays: combine(arrays), *trees)


def select(condition: Bool[HostNumber, ""], yes: PyTree, no: PyTree) -> PyTree:
    """Returns `yes` if a scalar condition holds, else `no`, leaf by leaf; supports typed keys."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def strongly_typed(tree: PyTree) -> PyTree:
    """Makes the dtypes of arrays inside a trace strong.

    That of `jnp.full(3, 0.5)` is weak. A round that takes such a state and returns a strongly typed
    one would be compiled twice.
    """

    def fixed(x):
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype) if x.weak_type else x

    return jax.tree.map(fixed, tree)
