"""A store of client states in host memory, with only participants on the devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.mesh import scatter
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.simulation.roster import PADDING, ClientStore, has_keys


def host_store(mesh: Mesh) -> ClientStore:
    """Keeps states as NumPy arrays of this process's rows.

    Device memory grows with participants, not with clients.
    """

    def save(stored, states, roster, flat):
        for kept, new in zip(jax.tree.leaves(stored), jax.tree.leaves(states)):
            for shard in new.addressable_shards:
                rows = flat[shard.index[0]]
                real = rows != PADDING
                kept[np.searchsorted(roster.local, rows[real])] = np.asarray(shard.data)[real]
        return _consumed(stored)

    def init(roster, make):
        held = [roster.local[roster.device[roster.local] == d] for d in range(mesh.size)]
        stored = None
        for start in range(0, roster.shard, roster.capacity):
            # A process fills the lines of its own devices; the other lines are padding that it
            # never reads.
            lines = np.full((mesh.size, roster.capacity), PADDING)
            for line, rows in zip(lines, held):
                block = rows[start : start + roster.capacity]
                line[: len(block)] = block
            states = make(lines.reshape(-1))
            if stored is None:
                _refuse_keys(states)
                stored = _room_for(states, max(1, len(roster.local)))
            stored = save(stored, states, roster, lines.reshape(-1))
        return stored

    def load(stored, roster, flat):
        # For padding and for other processes' rows, any row will do.
        held = np.minimum(np.searchsorted(roster.local, flat), max(0, len(roster.local) - 1))
        return scatter(mesh, take(stored, held))

    def slots(roster, flat):
        return np.tile(np.arange(len(flat) // mesh.size), mesh.size)

    def read(stored, roster, rows):
        here = np.isin(rows, roster.local)
        local = np.searchsorted(roster.local, rows[here])
        return jax.tree.map(functools.partial(_from_all, here), take(stored, local))

    def write(stored, roster, rows, tree):
        here = np.isin(rows, roster.local)
        for kept, new in zip(jax.tree.leaves(stored), jax.tree.leaves(tree)):
            kept[np.searchsorted(roster.local, rows[here])] = new[here]
        return _consumed(stored)

    def block(roster):
        return roster.capacity

    return ClientStore(
        init=init,
        load=load,
        slots=slots,
        save=save,
        read=read,
        write=write,
        block=block,
    )


def _consumed(stored: PyTree) -> PyTree:
    """Returns new views of the states, which changed in place; the old ones become read-only.

    Its simulation rejects a state with read-only arrays, as it does one with donated buffers.
    """
    views = jax.tree.map(lambda x: x.view(), stored)
    for x in jax.tree.leaves(stored):
        x.flags.writeable = False
    return views


def _room_for(states: PyTree, rows: int) -> PyTree:
    """Returns arrays of the states' form with `rows` rows."""

    def room(x):
        return np.empty((rows, *x.shape[1:]), x.dtype)

    return jax.tree.map(room, states)


def _refuse_keys(states: PyTree) -> None:
    if has_keys(states):
        raise ValueError(
            "client_store is 'host', but these client states hold random keys, which live on "
            "devices only; set it to 'device'"
        )


def _from_all(here: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Gathers rows on every process; each process holds those in `here`, bool."""
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    whole = np.zeros((len(here), *values.shape[1:]), values.dtype)
    whole[here] = values
    masks, parts = multihost_utils.process_allgather((here, whole))
    for mask, part in zip(masks, parts):
        whole[mask] = part[mask]
    return whole
