"""Places of clients on devices, and schedules of rounds: made on the host, from numbers that never
change in a run."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.executor import Schedule, capacity_for, longest_first, wasted_lane_steps
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Participant
from fedjax_ht.core.trees import take
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.options import SimulationOptions

PADDING = -1  # of a place where nobody stands


class Roster(NamedTuple):
    """A bucket's clients. A client's row is its position in `members`.

    Attributes:
      members: int64 [n], client ids ascending.
      steps: int64 [n], local steps of a round.
      device: int64 [n], the device of the mesh that holds a row.
      slot: int64 [n], its place there, ascending with the row.
      local: int64 [..], the rows that this process holds, ascending.
      devices: number of devices in the mesh.
      shard: rows that a device has room for.
      capacity: rows that a device provides for one round.
      lanes: rows that run side by side on a device.
      most: most participants of one round.
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
        """Returns the rows of a device, rounded up to a multiple of its lanes."""
        return -(-self.shard // self.lanes) * self.lanes

    @property
    def in_order(self) -> bool:
        """Returns whether a layout of participants is what a server gets, row by row: on one
        device, one after another."""
        return self.devices == self.lanes == 1

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of those of `ids` that are members, ascending."""
        return np.flatnonzero(np.isin(self.members, ids))


def deal(costs: Sequence[np.ndarray], devices: int) -> list[np.ndarray]:
    """Deals the rows of all buckets to devices.

    The dearest row goes first, to the device with the least to do so far, of equals to the one with
    the fewest rows. All buckets are dealt together: a device that is done with one goes on with the
    next.

    Args:
      costs: per bucket, float [rows], the cost of a row's round, in any unit that all share.
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
    """Puts a bucket's rows in their places.

    Args:
      members: client ids ascending.
      steps: int [n].
      device: each row's device, as `deal` returns it, int [n].
      participants: number of a round's participants, in all buckets.
      lanes: rows to run side by side, if there are so many.
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

    Rows are dealt to devices by their steps times the FLOPs of their architecture; `counts` are the
    clients' training samples, int [num_clients].
    """
    buckets = federation.buckets
    steps, costs = [], []
    for bucket in buckets:
        num_samples = counts[np.array(federation.members(bucket))]
        of_bucket = num_steps(method.training_of(bucket.name), num_samples)
        steps.append(of_bucket)
        # On one device nothing is dealt, and no architecture need be traced for its FLOPs.
        unit = sample_flops(bucket) if mesh.size > 1 else 1.0
        costs.append(unit * of_bucket)
    participants = options.participants(federation.num_clients)
    lanes = simulation_lanes(federation, counts, method, options)
    rosters = {}
    for bucket, of_bucket, device in zip(buckets, steps, deal(costs, mesh.size)):
        members = np.array(federation.members(bucket))
        rosters[bucket.name] = make_roster(
            members,
            of_bucket,
            device,
            participants=participants,
            lanes=lanes[bucket.name],
            mesh=mesh,
        )
    return rosters


def lay_out(roster: Roster, rows: np.ndarray, size: int) -> np.ndarray:
    """Lays out rows in the order of `by_device`, each device's line padded to `size`.

    Returns:
      int64 [devices * size].
    """
    flat = np.full((roster.devices, size), PADDING)
    for line, of_device in zip(flat, by_device(roster, rows)):
        line[: len(of_device)] = of_device
    return flat.reshape(-1)


def blocks(roster: Roster, rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Makes as many layouts as it takes for `size` rows of a device at a time."""
    lines = by_device(roster, rows)
    layouts = []
    for start in range(0, max(map(len, lines)), size):
        block = [line[start : start + size] for line in lines]
        layouts.append(lay_out(roster, np.concatenate(block), size))
    return layouts


def by_device(roster: Roster, rows: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each device: longest first where several run side by side, so that lanes
    of a chunk finish together, else as they are."""
    lines = [rows[roster.device[rows] == d] for d in range(roster.devices)]
    if roster.lanes == 1:
        return lines
    return [line[longest_first(roster.steps[line])] for line in lines]


def schedule(
    roster: Roster, flat: np.ndarray, slots: np.ndarray, info: ClientInfo, lost: np.ndarray
) -> Schedule:
    """Makes the schedule of laid-out rows, on the host.

    Args:
      roster: the roster of the bucket.
      flat: the layout, rows and `PADDING`, as `lay_out` or `blocks` makes it, int64.
      slots: int [len(flat)], where the states lie on each device.
      info: the knowledge of every client, leading axis [clients of the federation].
      lost: rows whose uplink is dropped.

    Returns:
      Leading axes [len(flat) / lanes, lanes] of the slots and [len(flat)] of the arguments, and a
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
    out_of_range = np.iinfo(np.int32).max  # so that padding is never written
    slots = np.where(real, slots, out_of_range).astype(np.int32)
    return Schedule(
        slots=slots.reshape(-1, roster.lanes),
        arguments=participants,
        count=real.reshape(roster.devices, -1).sum(1).astype(np.int32),
    )


def clients_of(roster: Roster, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the clients in a layout.

    Returns:
      Their ids, ascending, int64 [m]; and where they stand in the layout, int64 [m].
    """
    where = np.flatnonzero(flat != PADDING)
    where = where[np.argsort(flat[where])]
    return roster.members[flat[where]], where


def padded(where: np.ndarray, size: int) -> np.ndarray:
    """Returns places filled up with PADDING, int32 [size]."""
    places = np.full(size, PADDING, np.int32)
    places[: len(where)] = where
    return places


def idle_lane_steps(roster: Roster, flat: np.ndarray) -> np.ndarray:
    """Counts [lane-steps that wait for others of their chunk, all lane-steps] of a layout."""
    spent = np.zeros(2)
    for line in flat.reshape(roster.devices, -1):
        steps = roster.steps[line[line != PADDING]]
        idle = wasted_lane_steps(steps, roster.lanes)
        total = steps.sum() / (1 - idle)
        spent += idle * total, total
    return spent
