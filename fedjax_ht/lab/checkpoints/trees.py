"""Pytrees of arrays on disk: one .npz file, its arrays named by the position of the leaf.

Positions instead of paths, so that a file need not know a method's types.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.files import plain_open

ARRAYS = "arrays.npz"


def save_tree(path: Path, tree: PyTree) -> None:
    """Writes a pytree of arrays and typed keys into a new folder.

    Every process of a run makes the same call, since fetching an array that lies on several
    processes takes all of them; the first one writes.

    Raises:
      OSError: it cannot be written. One line.
    """
    arrays = {}
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        arrays[_name(i)] = _storable(plain(leaf))
    if jax.process_index() > 0:
        return
    try:
        path.mkdir(parents=True)
        with plain_open(path / ARRAYS, "xb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def load_tree(path: Path, template: PyTree) -> PyTree:
    """The tree that `save_tree` wrote, of the template's structure, shapes, dtypes and placement.

    Raises:
      Exception: of any kind, if a file is missing, damaged or of another tree.
    """
    with np.load(path / ARRAYS, allow_pickle=False) as arrays:
        stored = dict(arrays)
    leaves, structure = jax.tree.flatten(template)
    restored = [_restored(stored.get(_name(i)), leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, restored)


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is an array of typed keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    """An array, or the numbers of an array of typed keys, in host memory."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _name(position: int) -> str:
    return f"{position:05d}"


def _storable(array: np.ndarray) -> np.ndarray:
    """The array as a dtype that .npy files know: the bits of bfloat16 and the like as integers."""
    if array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _restored(stored: np.ndarray | None, leaf: Any) -> Any:
    """A stored array in the form of a template's leaf."""
    like = plain(leaf)
    expected = _storable(like)
    if stored is None or stored.shape != expected.shape or stored.dtype != expected.dtype:
        form = "nothing" if stored is None else f"{stored.dtype}{list(stored.shape)}"
        raise ValueError(f"it holds {form}, expected {like.dtype}{list(like.shape)}")
    # host arrays of a state are written to
    value = np.require(stored.view(like.dtype), requirements="W")
    if is_key(leaf):
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    return jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else value
