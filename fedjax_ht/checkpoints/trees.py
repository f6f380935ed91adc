"""Pytrees of arrays on disk, by orbax: leaves by position, so that it need not know a method's
types."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fedjax_ht.core.method import PyTree


def save_tree(path: Path, tree: PyTree) -> None:
    """Writes a pytree of arrays and typed keys; every process of a run makes the same call.

    Raises:
      OSError: it cannot be written. One line.
    """
    try:
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=ocp.args.StandardSave(_pack(tree)))
    except (ValueError, RuntimeError) as error:  # tensorstore's, of a full disk too
        raise OSError(f"{path} cannot be written: {' '.join(str(error).split())}") from error


def load_tree(path: Path, template: PyTree) -> PyTree:
    """The tree that `save_tree` wrote, of the template's structure, shapes, dtypes and placement.

    Raises:
      Exception: of any kind, if a file is missing, damaged or of another tree.
    """
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        stored = checkpointer.restore(path)
    leaves, structure = jax.tree.flatten(template)
    for i, leaf in enumerate(leaves):
        like = plain(leaf)
        value = stored[f"{i:05d}"] if like.size else like
        if value.shape != like.shape or value.dtype != like.dtype:
            raise ValueError(
                f"it holds {value.dtype}{list(value.shape)}, expected "
                f"{like.dtype}{list(like.shape)}"
            )
        value = (
            jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
            if is_key(leaf)
            else np.require(value, requirements="W")
        )
        leaves[i] = jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else value
    return jax.tree.unflatten(structure, leaves)


def is_key(leaf: Any) -> bool:
    """Whether it is an array of typed keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    """An array, or the numbers of a typed key's, in host memory."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _pack(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves that hold anything: orbax takes no empty array."""
    leaves = map(plain, jax.tree.leaves(tree))
    return {f"{i:05d}": leaf for i, leaf in enumerate(leaves) if leaf.size}
