"""Stores of client states between rounds: on the devices, in host memory with only participants on
the devices, or nowhere."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedjax_ht.core.mesh import SHARDED, fetch, scatter
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.simulation.roster import PADDING, Roster

# rows int [devices * k], padding included -> their first states, sharded
Make = Callable[[np.ndarray], PyTree]


class ClientStore(NamedTuple):
    """A bucket's states at rest; "rows" and "flat", a layout, are those of `roster`.

    Attributes:
      init: (roster, make) -> stored states.
      load: (stored, roster, flat) -> stacked states on the devices.
      slots: (roster, flat) -> int [len(flat)], where in those each row is.
      save: (stored, device states, roster, flat) -> stored; padding is not written.
      read: (stored, roster, rows) -> those rows as NumPy.
      write: (stored, roster, rows, NumPy rows) -> stored.
      block: (roster) -> rows that one call may load on a device.
    """

    init: Callable[[Roster, Make], PyTree]
    load: Callable[[PyTree, Roster, np.ndarray], PyTree]
    slots: Callable[[Roster, np.ndarray], np.ndarray]
    save: Callable[[PyTree, PyTree, Roster, np.ndarray], PyTree]
    read: Callable[[PyTree, Roster, np.ndarray], PyTree]
    write: Callable[[PyTree, Roster, np.ndarray, PyTree], PyTree]
    block: Callable[[Roster], int]


def device_store(mesh: Mesh) -> ClientStore:
    """Keeps all states on the devices, [devices * shard, ...]; a round works on them in place."""

    def put(stored, index, values):
        def into(x, new):
            return x.at[index].set(new)

        return jax.tree.map(into, stored, values)

    take_on_devices = jax.jit(take)
    # The buffers are donated: a write changes the stored states in place.
    put_on_devices = jax.jit(put, donate_argnums=0, out_shardings=NamedSharding(mesh, SHARDED))

    def position(roster, rows):
        return roster.device[rows] * roster.shard + roster.slot[rows]

    def read(stored, roster, rows):
        states = fetch(take_on_devices(stored, position(roster, rows)[_padded(len(rows))]))
        return take(states, slice(len(rows)))

    def write(stored, roster, rows, tree):
        index = _padded(len(rows))
        return put_on_devices(stored, position(roster, rows)[index], take(tree, index))

    def init(roster, make):
        rows = np.arange(len(roster.steps))
        flat = np.full(mesh.size * roster.shard, PADDING)
        flat[position(roster, rows)] = rows
        return make(flat)

    def load(stored, roster, flat):
        return stored  # all are there already

    def slots(roster, flat):
        return roster.slot[flat]

    def save(stored, states, roster, flat):
        return states  # a round worked on all of them in place

    return ClientStore(
        init=init,
        load=load,
        slots=slots,
        save=save,
        read=read,
        write=write,
        block=_whole_shard,
    )


def _whole_shard(roster: Roster) -> int:
    return roster.padded_shard


def no_store(mesh: Mesh) -> ClientStore:
    """Keeps nothing: the clients' states are ()."""

    def refuse(*_):
        raise ValueError(
            "clients of this method keep nothing between rounds; no state can be read or written"
        )

    def no_states(*_):
        return ()

    def slots(roster, flat):
        return np.zeros(len(flat), np.int64)

    return ClientStore(
        init=no_states,
        load=no_states,
        slots=slots,
        save=no_states,
        read=refuse,
        write=refuse,
        block=_whole_shard,
    )


def _padded(count: int) -> np.ndarray:
    """Returns 0 to count - 1, the last one repeated up to a power of two: few lengths, so few
    compiled functions."""
    return np.minimum(np.arange(1 << (count - 1).bit_length()), count - 1)


def host_store(mesh: Mesh) -> ClientStore:
    """Keeps states as NumPy arrays of this process's rows; device memory grows with participants,
    not with clients."""

    def save(stored, states, roster, flat):
        for kept, new in zip(jax.tree.leaves(stored), jax.tree.leaves(states)):
            for shard in new.addressable_shards:
                rows = flat[shard.index[0]]
                real = rows != PADDING
                kept[np.searchsorted(roster.local, rows[real])] = np.asarray(shard.data)[real]
        return stored

    def init(roster, make):
        held = [roster.local[roster.device[roster.local] == d] for d in range(mesh.size)]
        stored = None
        for start in range(0, roster.shard, roster.capacity):
            # A process fills the lines of its own devices; the others' lines are padding that it
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
        # Any row serves for padding, and for what other processes place.
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
        return stored

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


def _room_for(states: PyTree, rows: int) -> PyTree:
    """Returns arrays of the states' form with so many rows."""

    def room(x):
        return np.empty((rows, *x.shape[1:]), x.dtype)

    return jax.tree.map(room, states)


def _refuse_keys(states: PyTree) -> None:
    for leaf in jax.tree.leaves(states):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(
                "client_store is 'host', but these client states hold random keys, which live on "
                "devices only; set it to 'device'"
            )


def _from_all(here: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Gathers rows of which each process holds some, `here` bool, on every process."""
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    whole = np.zeros((len(here), *values.shape[1:]), values.dtype)
    whole[here] = values
    masks, parts = multihost_utils.process_allgather((here, whole))
    for mask, part in zip(masks, parts):
        whole[mask] = part[mask]
    return whole


STORES: dict[str, Callable[[Mesh], ClientStore]] = {"device": device_store, "host": host_store}
