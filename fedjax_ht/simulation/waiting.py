"""Uploads that miss the deadline and arrive in a later round, where `Profile.late` says so.

A client whose round takes longer than the deadline goes on with it in the next one, and takes part
in nothing else till its upload arrives. Every round waits for such uploads as for its
participants', and no longer than the deadline. They reach the server as they were sent, beside
those of the round.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.mesh import collect
from fedjax_ht.core.method import ClientInfo, PyTree, Received
from fedjax_ht.core.trees import join_trees, take
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.answers import Answers
from fedjax_ht.simulation.clock import Devices, OnItsWay
from fedjax_ht.simulation.roster import PADDING


class Waiting(NamedTuple):
    """Uploads that are on their way between two rounds.

    Attributes:
      sent: bucket name -> (uplink, ClientInfo) as they were sent, stacked over the bucket's rows,
        on the server's device; of a client that has nothing on its way they may be anything.
      uploads: of all trials.
    """

    sent: dict[str, tuple[PyTree, ClientInfo]]
    uploads: OnItsWay


def nobody_waits(devices: Devices, forms: dict[str, PyTree], infos: ClientInfo) -> Waiting:
    """Returns what waits before the first round: nothing.

    Args:
      devices: the clients' devices.
      forms: bucket name -> the form of its uplinks, `jax.ShapeDtypeStruct`s.
      infos: of every client, leading axes [trials, num_clients].
    """
    sent = {}
    info = take(infos, (0, 0))  # any client's: all have one form
    for name, form in forms.items():
        rows = len(devices.rosters[name].steps)

        def zeros(x, rows=rows):
            return np.zeros((rows, *x.shape), x.dtype)

        sent[name] = collect(devices.mesh, jax.tree.map(zeros, (form, info)))
    shape = infos.id.shape
    cost = WireCost(*(np.zeros(shape, np.int64) for _ in WireCost._fields))
    return Waiting(sent, OnItsWay(np.zeros(shape), cost))


def with_earlier(
    devices: Devices, waiting: Waiting | None, answers: dict[str, Answers]
) -> tuple[dict[str, Received], dict[str, np.ndarray]]:
    """Joins a round's uplinks with those of earlier rounds that arrive in it.

    Args:
      devices: the clients' devices.
      waiting: what was on its way before the round; None where late uploads are lost.
      answers: of the round's participants.

    Returns:
      What the server gets, and each trial's rows in it, int32 [trials, m], by client id; a bucket
      that is missing there is the only trial's, in order.
    """
    if waiting is None:
        return _without_earlier(answers)
    all_received, all_rows = {}, {}
    for name, part in answers.items():
        roster, earlier = devices.rosters[name], arrivals(devices, waiting, name)
        rows = part.rows
        behind = np.arange(len(earlier.arrived), dtype=np.int32).reshape(len(rows), -1)
        # Padding sorts behind every client; a client never stands in both halves.
        ids = np.where(rows == PADDING, devices.num_clients, part.places.clients[rows])
        order = np.argsort(
            np.concatenate([ids, roster.client(behind)[1]], axis=1), axis=1, kind="stable"
        )
        all_received[name] = join_trees(jnp.concatenate, (part.received, earlier))
        both = np.concatenate([rows, len(part.received.arrived) + behind], axis=1)
        all_rows[name] = np.take_along_axis(both, order, axis=1)
    return all_received, all_rows


def _without_earlier(
    answers: dict[str, Answers],
) -> tuple[dict[str, Received], dict[str, np.ndarray]]:
    """Returns what `with_earlier` does where no upload of an earlier round arrives."""
    received, rows = {}, {}
    for name, part in answers.items():
        received[name] = part.received
        if not part.in_order:
            rows[name] = part.rows
    return received, rows


def arrivals(devices: Devices, waiting: Waiting, name: str) -> Received:
    """Returns a bucket's uploads of earlier rounds, of all rows; those that come in the next round
    have arrived."""
    roster = devices.rosters[name]
    assert devices.profile is not None  # without one nothing waits
    arriving = waiting.uploads.arriving(devices.profile)
    by_row = arriving[roster.client(np.arange(len(roster.steps)))]
    return Received(*waiting.sent[name], collect(devices.mesh, by_row))


def after_round(
    devices: Devices, waiting: Waiting | None, answers: dict[str, Answers]
) -> Waiting | None:
    """Returns what is on its way after a round of these answers, with their times."""
    profile = devices.profile
    if waiting is None or profile is None:
        return None
    deadline = profile.deadline
    # Who goes on waiting has waited for a whole deadline; all others' uploads are there.
    left = np.maximum(waiting.uploads.left - deadline, 0)
    sent, cost = dict(waiting.sent), jax.tree.map(np.copy, waiting.uploads.cost)
    for name, part in answers.items():
        times = part.times
        assert times is not None  # as wherever an upload may wait
        late = times.late
        if not late.any():
            continue
        # Beyond the end nothing is written.
        end = len(devices.rosters[name].steps)
        slots = np.where(late, part.places.rows, end)
        new = (part.received.uplink, part.received.info)
        sent[name] = _put(sent[name], new, collect(devices.mesh, slots))
        stragglers = (part.places.trials[late], part.places.clients[late])
        left[stragglers] = times.seconds[late] - deadline
        for old, new_cost in zip(cost, times.cost):
            old[stragglers] = new_cost[late]
    return Waiting(sent, OnItsWay(left, cost))


def regrouped_waiting(parts: Sequence[tuple[Waiting, Sequence[int]]]) -> Waiting:
    """Joins trials of several runs as those of one.

    Args:
      parts: (what waits in a run, the numbers of its trials that are taken).
    """

    def join(*leaves):
        taken = []
        for leaf, (waiting, trials) in zip(leaves, parts):
            # Rows lie trial after trial, so that trials are a leading axis of equal parts.
            by_trial = leaf.reshape(len(waiting.uploads.left), -1, *leaf.shape[1:])
            taken.append(by_trial[np.array(trials)])
        arrays = jnp if isinstance(leaves[0], jax.Array) else np
        return arrays.concatenate(taken).reshape(-1, *leaves[0].shape[1:])

    return jax.tree.map(join, *(waiting for waiting, _ in parts))


@jax.jit
def _put(stored: PyTree, new: PyTree, places: jax.Array) -> PyTree:
    def put(x, y):
        return x.at[places].set(y, mode="drop")

    return jax.tree.map(put, stored, new)
