"""A method's message as named arrays, exactly what it counts as: what a wire carries, and nothing
that could run.

Both sides know a message's form, since both know the method and the architecture; so only numbers
travel. A plain array is one array, a `Masked` its rows with True and their places, a `Metadata`
what it holds.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.method import PyTree
from fedjax_ht.core.wire import Masked, is_masked
from fedjax_ht.deploy.envelope import HEADER


def pack(message: PyTree) -> dict[str, np.ndarray]:
    """A message's arrays by name, in order."""
    packed = {}
    for name, leaf in _named(message):
        if is_masked(leaf):
            mask = np.asarray(leaf.mask)
            packed[f"{name}.rows"] = np.asarray(leaf.values)[mask]
            packed[f"{name}.places"] = np.flatnonzero(mask).astype(np.int32)
        else:
            packed[name] = np.asarray(leaf)
    return packed


def unpack(form: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """The message that `pack` took apart; rows that were not sent are zero.

    Args:
      form: the message's form, such as `jax.eval_shape` gives.
      arrays: by name.
      what: for messages, such as "the uplink".

    Raises:
      ValueError: they are not of that form. One line.
    """
    left, leaves = dict(arrays), []
    for name, leaf in _named(form):
        if is_masked(leaf):
            rows, places = (_taken(left, f"{name}.{part}", what) for part in ("rows", "places"))
            shape = leaf.values.shape[leaf.mask.ndim :]
            _check(what, f"{name}.places", places, (places.size,), np.dtype(np.int32))
            _check(what, f"{name}.rows", rows, (places.size, *shape), leaf.values.dtype)
            size = int(np.prod(leaf.mask.shape, dtype=int))
            if len(places) and not (
                places.min() >= 0 and places.max() < size and (np.diff(places) > 0).all()
            ):
                raise ValueError(
                    f"{what} names rows in {name} that are none of 0 to {size - 1}, each once, in "
                    "order"
                )
            mask, values = np.zeros(size, bool), np.zeros((size, *shape), leaf.values.dtype)
            mask[places], values[places] = True, rows
            leaves.append(Masked(values.reshape(leaf.values.shape), mask.reshape(leaf.mask.shape)))
        else:
            array = _taken(left, name, what)
            _check(what, name, array, leaf.shape, leaf.dtype)
            leaves.append(array)
    if left:
        raise ValueError(f"{what} has {next(iter(left))!r}, which is not part of it")
    return jax.tree.unflatten(jax.tree.structure(form, is_leaf=is_masked), leaves)


def most_bytes(form: PyTree) -> int:
    """Bytes of a message's arrays, with their headers, where it sends all that its form allows."""
    size = 0
    for _, leaf in _named(form):
        if is_masked(leaf):
            places = int(np.prod(leaf.mask.shape, dtype=int)) * np.dtype(np.int32).itemsize
            size += _nbytes(leaf.values) + places + 2 * HEADER
        else:
            size += _nbytes(leaf) + HEADER
    return size


def _nbytes(leaf: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(leaf.shape, dtype=int)) * np.dtype(leaf.dtype).itemsize


def _named(message: PyTree) -> Iterator[tuple[str, Any]]:
    """The leaves of a message, each with a name: where it is, such as "prototypes" or
    "params.base.kernel"."""
    for i, (path, leaf) in enumerate(
        jax.tree_util.tree_leaves_with_path(message, is_leaf=is_masked)
    ):
        words = [
            str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key in path
        ]
        yield ".".join([f"{i:03d}", *words]), leaf


def _taken(left: dict[str, np.ndarray], name: str, what: str) -> np.ndarray:
    if name not in left:
        raise ValueError(f"{what} lacks {name!r}")
    return left.pop(name)


def _check(what: str, name: str, array: np.ndarray, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise ValueError(
            f"{what} has {name} of {array.dtype} {array.shape}; it must be {dtype} {tuple(shape)}"
        )
