"""Uploads as integers of a few bits, the difference to an upload that both sides know."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import (
    from_leaves,
    is_leaf,
    is_masked,
    is_payload,
    leaves_of,
    sent_rows,
    values_of,
)


class Rounded(NamedTuple):
    """An array, or rows of one, as integers.

    Attributes:
      integers: int8 of the array's shape, or uint8 [*m, bytes] with several to a byte, where [*m]
        are the rows of a `Masked`; a `Masked` of these.
      unit: float32 scalar, the number that the integer 1 stands for.
    """

    integers: Any
    unit: jax.Array


def encode_rounded(bits: int, uplink: PyTree, reference: PyTree) -> PyTree:
    """Replaces the arrays of an upload by their changes in integers.

    Args:
      bits: bits of an integer: 2, 4 or 8.
      uplink: the upload.
      reference: an upload of the same form, which both sides know.

    Returns:
      The upload with a `Rounded` for each array of its payload.
    """
    leaves = []
    for leaf, known in zip(leaves_of(uplink), leaves_of(reference), strict=True):
        leaves.append(_rounded(bits, leaf, known) if is_payload(leaf) else leaf)
    return from_leaves(uplink, leaves)


def _rounded(bits: int, leaf: Any, known: Any) -> Rounded:
    most = 2 ** (bits - 1) - 1
    change = jnp.where(sent_rows(leaf), values_of(leaf) - values_of(known), 0)
    unit = jnp.max(jnp.abs(change), initial=0).astype(jnp.float32) / most
    steps = jnp.round(change / jnp.where(unit > 0, unit, 1))
    integers = _packed(bits, jnp.int8(jnp.clip(steps, -most, most)), leaf)
    return Rounded(leaf._replace(values=integers) if is_masked(leaf) else integers, unit)


def decode_rounded(bits: int, message: PyTree, reference: PyTree) -> PyTree:
    """Returns the upload that such a message stands for; arguments as for `encode_rounded`."""
    coded = jax.tree.leaves(message, is_leaf=lambda x: isinstance(x, Rounded) or is_leaf(x))
    leaves = []
    for leaf, known in zip(coded, leaves_of(reference), strict=True):
        if not isinstance(leaf, Rounded):
            leaves.append(leaf)
            continue
        start = values_of(known)
        values = start + _unpacked(bits, leaf.integers, start.shape) * leaf.unit
        values = values.astype(start.dtype)
        leaves.append(leaf.integers._replace(values=values) if is_masked(known) else values)
    return from_leaves(reference, leaves)


def _packed(bits: int, integers: jax.Array, leaf: Any) -> jax.Array:
    """Packs integers into bytes, row by row: int8 of any shape -> itself, or uint8 [*m, bytes]."""
    if bits == 8:
        return integers
    rows = leaf.mask.shape if is_masked(leaf) else ()
    each, offset = 8 // bits, 2 ** (bits - 1) - 1
    flat = jnp.uint8(integers + offset).reshape(*rows, -1)
    padding = [(0, 0)] * len(rows) + [(0, -flat.shape[-1] % each)]
    flat = jnp.pad(flat, padding).reshape(*rows, -1, each)
    return jnp.sum(flat << _shifts(bits), axis=-1, dtype=jnp.uint8)


def _unpacked(bits: int, integers: Any, shape: tuple[int, ...]) -> jax.Array:
    """Returns the integers that `_packed` got, of this shape."""
    packed = values_of(integers)
    if bits == 8:
        return packed.astype(jnp.float32)
    rows = integers.mask.shape if is_masked(integers) else ()
    flat = (packed[..., None] >> _shifts(bits)) & (2**bits - 1)
    flat = flat.reshape(*rows, -1)[..., : math.prod(shape[len(rows) :])]
    return flat.reshape(shape).astype(jnp.float32) - (2 ** (bits - 1) - 1)


def _shifts(bits: int) -> jax.Array:
    return jnp.arange(0, 8, bits, dtype=jnp.uint8)
