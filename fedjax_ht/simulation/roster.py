"""Positions of clients on devices, stores of their states, and schedules of rounds.

They are made on the host, from numbers that never change in a run.
"""

import heapq
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.executor import Schedule, capacity_for, longest_first
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.mesh import SHARDED, fetch, fetch_rows, in_one_memory
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Participant
from fedjax_ht.core.trees import PyTree, take
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.options import SimulationOptions

PADDING = -1  # an unused entry of a layout


class Roster(NamedTuple):
    """A bucket's clients. A client's row is its position in `members`.

    Attributes:
      members: int64 [n], client ids ascending.
      steps: int64 [n], local steps per round.
      device: int64 [n], the device of the mesh that holds a row.
      slot: int64 [n], its index there, ascending with the row.
      local: int64 [..], the rows that this process holds, ascending.
      devices: number of devices in the mesh.
      shard: rows that a device has room for.
      capacity: rows that a device provides for one round.
      lanes: rows that run in parallel on a device.
      most: maximum number of participants in a round.
    """

    members: np.ndarray
    steps: np.ndarray
    device: np.ndarray
    slot: np.ndarray
    local: np.ndarray
    devices: int
    shard: int
    capacity: int
    lanes: int
    most: int

    @property
    def padded_shard(self) -> int:
        """The rows of a device, rounded up to a multiple of its lanes."""
        return -(-self.shard // self.lanes) * self.lanes

    @property
    def in_order(self) -> bool:
        """True if a layout lists participants by id: on one device with one lane."""
        return self.devices == self.lanes == 1

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of those of `ids` that are members, ascending."""
        return np.flatnonzero(np.isin(self.members, ids))


def deal(costs: Sequence[np.ndarray], devices: int) -> list[np.ndarray]:
    """Assigns the rows of all buckets to devices.

    Rows are assigned by descending cost, each to the device with the lowest load so far; ties go to
    the device with the fewest rows. All buckets are assigned together: a device that finishes one
    continues with the next.

    Args:
      costs: per bucket, float [rows], the cost of a row's round, in any common unit.
      devices: number of devices.

    Returns:
      Per bucket, int64 [rows], the device of each row.
    """
    dealt = np.empty(sum(map(len, costs)), np.int64)
    loads = [(0.0, 0, d) for d in range(devices)]
    flat = np.concatenate(costs)
    for row in longest_first(flat):
        load, rows, device = loads[0]
        dealt[row] = device
        heapq.heapreplace(loads, (load + float(flat[row]), rows + 1, device))
    return np.split(dealt, np.cumsum([len(c) for c in costs])[:-1])


def make_roster(
    members: np.ndarray,
    steps: np.ndarray,
    device: np.ndarray,
    *,
    participants: int,
    lanes: int,
    mesh: Mesh,
) -> Roster:
    """Makes a bucket's roster.

    Args:
      members: client ids ascending.
      steps: int [n], local steps per round.
      device: each row's device, as `deal` returns it, int [n].
      participants: number of a round's participants, over all buckets.
      lanes: rows to run in parallel, if there are as many.
      mesh: the devices.
    """
    devices = mesh.size
    slot = np.empty(len(steps), np.int64)
    for d in range(devices):
        slot[device == d] = np.arange(np.sum(device == d))
    shard = int(slot.max()) + 1
    most = min(participants, len(members))
    capacity, lanes = capacity_for(most, shard, lanes)
    is_local = np.array([d.process_index == jax.process_index() for d in mesh.devices.flat])
    return Roster(
        members=members,
        steps=steps,
        device=device,
        slot=slot,
        local=np.flatnonzero(is_local[device]),
        devices=devices,
        shard=shard,
        capacity=capacity,
        lanes=lanes,
        most=most,
    )


def make_rosters(
    federation: Federation,
    counts: np.ndarray,
    method: Method,
    options: SimulationOptions,
    mesh: Mesh,
) -> dict[str, Roster]:
    """Makes every bucket's roster.

    Rows are assigned to devices by their steps times their architecture's FLOPs. `counts` are the
    clients' training samples, int [num_clients].
    """
    buckets, steps, costs = federation.buckets, [], []
    for bucket in buckets:
        members = np.array(federation.members(bucket))
        steps.append(num_steps(method.training_of(bucket.name), counts[members]))
        # On one device costs do not matter, so no architecture is traced for its FLOPs.
        costs.append(steps[-1] * (sample_flops(bucket) if mesh.size > 1 else 1.0))
    participants = options.participants(federation.num_clients)
    lanes, rosters = simulation_lanes(federation, counts, method, options), {}
    for bucket, of_bucket, device in zip(buckets, steps, deal(costs, mesh.size)):
        rosters[bucket.name] = make_roster(
            np.array(federation.members(bucket)),
            of_bucket,
            device,
            participants=participants,
            lanes=lanes[bucket.name],
            mesh=mesh,
        )
    return rosters


def lay_out(roster: Roster, rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Lays out rows device by device, in blocks of `size` per device, padded.

    With several lanes, rows are sorted longest first, so that lanes of a chunk finish together.

    Returns:
      Layouts int64 [devices * size], one per block; one of only padding for no rows.
    """
    if roster.lanes > 1:
        rows = rows[longest_first(roster.steps[rows])]
    lines = [rows[roster.device[rows] == d] for d in range(roster.devices)]
    layouts = []
    for start in range(0, max(1, *map(len, lines)), size):
        flat = np.full((roster.devices, size), PADDING)
        for place, line in zip(flat, lines):
            block = line[start : start + size]
            place[: len(block)] = block
        layouts.append(flat.reshape(-1))
    return layouts


def schedule(
    roster: Roster, flat: np.ndarray, slots: np.ndarray, info: ClientInfo, lost: np.ndarray
) -> Schedule:
    """Makes the schedule of laid-out rows, on the host.

    Args:
      roster: the roster of the bucket.
      flat: the layout, rows and `PADDING`, as `lay_out` makes it, int64.
      slots: int [len(flat)], indices of the states on each device.
      info: every client's `ClientInfo`, leading axis [clients of the federation].
      lost: rows whose uplink is dropped.

    Returns:
      The schedule: slots [len(flat) / lanes, lanes], arguments with leading axis [len(flat)], and a
      count per device.
    """
    real = flat != PADDING
    rows = np.where(real, flat, 0)
    participants = Participant(
        member=rows.astype(np.int32),
        info=take(info, roster.members[rows]),
        valid=real,
        dropped=np.isin(flat, lost),
    )
    out_of_range = np.iinfo(np.int32).max  # padding is never written
    slots = np.where(real, slots, out_of_range).astype(np.int32)
    return Schedule(
        slots=slots.reshape(-1, roster.lanes),
        arguments=participants,
        count=real.reshape(roster.devices, -1).sum(1).astype(np.int32),
    )


def clients_of(roster: Roster, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the clients in a layout.

    Returns:
      Their ids, ascending, int64 [m], and their indices in the layout, int64 [m].
    """
    where = np.flatnonzero(flat != PADDING)
    where = where[np.argsort(flat[where])]
    return roster.members[flat[where]], where


def padded(where: np.ndarray, size: int) -> np.ndarray:
    """Returns indices padded with PADDING, int32 [size]."""
    places = np.full(size, PADDING, np.int32)
    places[: len(where)] = where
    return places


def idle_lane_steps(roster: Roster, flat: np.ndarray) -> np.ndarray:
    """Counts [lane steps spent waiting for others of the chunk, all lane steps] of a layout."""
    steps = np.where(flat == PADDING, 0, roster.steps[flat])
    total = steps.reshape(-1, roster.lanes).max(1).sum() * roster.lanes
    return np.array([total - steps.sum(), total])


# rows int [devices * k], including padding -> their first states, sharded
Make = Callable[[np.ndarray], PyTree]


class ClientStore(NamedTuple):
    """A store of a bucket's states between rounds; rows and layouts ("flat") are the roster's.

    Attributes:
      init: (roster, make) -> stored states.
      load: (stored, roster, flat) -> stacked states on the devices.
      slots: (roster, flat) -> int [len(flat)], each row's index in those.
      save: (stored, device states, roster, flat) -> stored; padding is not written.
      read: (stored, roster, rows) -> those rows as NumPy.
      write: (stored, roster, rows, NumPy rows) -> stored.
      block: (roster) -> maximum number of rows per device that one call may load.
    """

    init: Callable[[Roster, Make], PyTree]
    load: Callable[[PyTree, Roster, np.ndarray], PyTree]
    slots: Callable[[Roster, np.ndarray], np.ndarray]
    save: Callable[[PyTree, PyTree, Roster, np.ndarray], PyTree]
    read: Callable[[PyTree, Roster, np.ndarray], PyTree]
    write: Callable[[PyTree, Roster, np.ndarray, PyTree], PyTree]
    block: Callable[[Roster], int]


WHOLE_SHARD = operator.attrgetter("padded_shard")


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
        where = position(roster, rows)
        if in_one_memory(mesh) and not has_keys(stored):
            return fetch_rows(stored, where)  # no program to compile
        return take(fetch(take_on_devices(stored, where[_padded(len(rows))])), slice(len(rows)))

    def write(stored, roster, rows, tree):
        index = _padded(len(rows))
        return put_on_devices(stored, position(roster, rows)[index], take(tree, index))

    def init(roster, make):
        rows = np.arange(len(roster.steps))
        flat = np.full(mesh.size * roster.shard, PADDING)
        flat[position(roster, rows)] = rows
        return make(flat)

    def load(stored, roster, flat):
        return stored  # all states are on the devices

    def slots(roster, flat):
        return roster.slot[flat]

    def save(stored, states, roster, flat):
        return states  # a round updated them in place

    return ClientStore(
        init=init,
        load=load,
        slots=slots,
        save=save,
        read=read,
        write=write,
        block=WHOLE_SHARD,
    )


def no_store(mesh: Mesh) -> ClientStore:
    """Stores nothing: the clients' states are ()."""

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
        block=WHOLE_SHARD,
    )


def has_keys(states: PyTree) -> bool:
    """Returns whether states hold random keys, which live on devices only."""
    return any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(states))


def _padded(count: int) -> np.ndarray:
    """Returns 0 to count - 1, padded with the last to a power of two.

    Few lengths occur, so that few functions are compiled.
    """
    return np.minimum(np.arange(1 << (count - 1).bit_length()), count - 1)
