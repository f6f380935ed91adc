"""The entries of an upload that differ most from an upload that both sides know."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import (
    Metadata,
    from_leaves,
    is_masked,
    is_payload,
    leaves_of,
    payload_leaves,
)


class Largest(NamedTuple):
    """The entries of all whole arrays of an upload, one behind the other, that changed most.

    Attributes:
      values: float [k], entries of the upload itself.
      places: Metadata(int32 [k]), their positions, in no order.
      rest: leaves of the upload that are sent as they are.
    """

    values: jax.Array
    places: Metadata
    rest: list


def is_whole(leaf: Any) -> bool:
    """Returns True for an array that is sent with all its rows."""
    return not is_masked(leaf)


def _flat(message: PyTree) -> jax.Array:
    """Concatenates the whole arrays of a message's payload, float32 [n]."""
    whole = [leaf for leaf in payload_leaves(message).values() if is_whole(leaf)]
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in whole])


def encode_largest(share: float, uplink: PyTree, reference: PyTree) -> Largest:
    """Takes the entries of an upload that changed most.

    Args:
      share: share of the entries of all whole arrays, rounded up to a number.
      uplink: the upload.
      reference: an upload of the same form, which both sides know.
    """
    values = _flat(uplink)
    number = math.ceil(share * values.size)
    _, places = jax.lax.top_k(jnp.abs(values - _flat(reference)), number)
    rest = [leaf for leaf in leaves_of(uplink) if not (is_payload(leaf) and is_whole(leaf))]
    return Largest(values[places], Metadata(places.astype(jnp.int32)), rest)


def decode_largest(message: Largest, reference: PyTree) -> PyTree:
    """Returns the reference with the entries of a message in their places."""
    # Places that no honest client sends are dropped.
    flat = _flat(reference).at[message.places.value].set(message.values, mode="drop")
    unchanged, leaves, start = iter(message.rest), [], 0
    for known in leaves_of(reference):
        if not (is_payload(known) and is_whole(known)):
            leaves.append(next(unchanged))
            continue
        stop = start + known.size
        leaves.append(flat[start:stop].reshape(known.shape).astype(known.dtype))
        start = stop
    return from_leaves(reference, leaves)
