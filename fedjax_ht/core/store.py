"""Where client states live between rounds: on the device, or in host memory with only participants on the device."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.method import PyTree


class ClientStore(NamedTuple):
    """Attributes:
    put: (stacked states) -> stored states.
    load: (stored, members int [P]) -> (stacked states on the device, slots int32 [P] of the members in them).
    save: (stored, device states, members [P], count) -> stored; only the first `count` members are written.
    block: how many members one call may load, given (a round's capacity, the bucket's size).
    """

    put: Callable[[PyTree], PyTree]
    load: Callable[[PyTree, np.ndarray], tuple[PyTree, np.ndarray]]
    save: Callable[[PyTree, PyTree, np.ndarray, int], PyTree]
    block: Callable[[int, int], int]


def device_store() -> ClientStore:
    """All states stay on the device; a round works on them in place."""
    return ClientStore(
        put=lambda states: states,
        load=lambda stored, members: (stored, members.astype(np.int32)),
        save=lambda stored, states, members, count: states,
        block=lambda capacity, bucket_size: bucket_size,
    )


def host_store() -> ClientStore:
    """States are NumPy arrays in host memory; device memory grows with participants, not with clients."""

    def load(stored, members):
        return jax.device_put(jax.tree.map(lambda x: x[members], stored)), np.arange(len(members), dtype=np.int32)

    def save(stored, states, members, count):
        for kept, new in zip(jax.tree.leaves(stored), jax.tree.leaves(jax.device_get(states))):
            kept[members[:count]] = new[:count]
        return stored

    return ClientStore(
        put=lambda states: jax.tree.map(lambda x: np.array(x), jax.device_get(states)),
        load=load,
        save=save,
        block=lambda capacity, bucket_size: capacity,
    )


STORES: dict[str, Callable[[], ClientStore]] = {"device": device_store, "host": host_store}
