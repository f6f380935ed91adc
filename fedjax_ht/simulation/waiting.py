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

from fedjax_ht.core.forms import uplink_form
from fedjax_ht.core.mesh import collect
from fedjax_ht.core.method import ClientInfo, PyTree, Received
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.clock import OnItsWay, Times
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.roster import PADDING


class Waiting(NamedTuple):
    """What stands between two rounds.

    Attributes:
      sent: bucket name -> (uplink, ClientInfo) as they were sent, stacked over the bucket's rows,
        on the server's device; of who has nothing on its way they may be anything.
      uploads: of all trials.
    """

    sent: dict[str, tuple[PyTree, ClientInfo]]
    uploads: OnItsWay


def nobody_waits(program: Program, infos: ClientInfo) -> Waiting | None:
    """Before the first round; None where late uploads are lost. Traces every architecture's round,
    for its uplink.

    Args:
      program: what is bound.
      infos: of every client, leading axes [trials, num_clients].
    """
    profile = program.options[0].profile
    if profile is None or profile.late == "lost":
        return None
    one, sent = jax.tree.map(lambda x: x[0, 0], infos), {}
    for bucket in program.federation.buckets:
        uplink = uplink_form(program.method, program.federation, bucket, program.channel)
        rows = len(program.clients[bucket.name].roster.steps)

        def zeros(x, rows=rows):
            return np.zeros((rows, *x.shape), x.dtype)

        sent[bucket.name] = collect(program.mesh, jax.tree.map(zeros, (uplink, one)))
    shape = program.train_counts.shape
    return Waiting(
        sent,
        OnItsWay(np.zeros(shape), WireCost(*(np.zeros(shape, np.int64) for _ in WireCost._fields))),
    )


def with_arrivals(
    program: Program, waiting: Waiting, parts: dict[str, tuple[Received, np.ndarray, np.ndarray]]
) -> tuple[dict[str, Received], dict[str, np.ndarray]]:
    """What the server gets in a round, and each trial's rows in it, int32 [trials, m], by client
    id: the participants' uploads, and those of earlier rounds that arrive in it. `parts` are the
      participants': what is received by their
    layout, each trial's rows in that, and the layout."""
    all_received, all_rows = {}, {}
    for name, (own, rows, flat) in parts.items():
        roster, earlier = program.clients[name].roster, arrivals(program, waiting, name)
        behind = np.arange(len(earlier.arrived), dtype=np.int32).reshape(len(rows), -1)
        ids = np.where(
            rows == PADDING, program.federation.num_clients, roster.client(flat[rows])[1]
        )
        order = np.argsort(
            np.concatenate([ids, roster.client(behind)[1]], axis=1), axis=1, kind="stable"
        )
        all_received[name] = jax.tree.map(lambda *xs: jnp.concatenate(xs), own, earlier)
        both = np.concatenate([rows, len(own.arrived) + behind], axis=1)
        all_rows[name] = np.take_along_axis(both, order, axis=1)
    return all_received, all_rows


def arrivals(program: Program, waiting: Waiting, name: str) -> Received:
    """A bucket's uploads of earlier rounds, of all rows; "arrived" are those that do so in the next
    round."""
    roster = program.clients[name].roster
    arriving = waiting.uploads.arriving(program.options[0].profile)[
        roster.client(np.arange(len(roster.steps)))
    ]
    return Received(*waiting.sent[name], collect(program.mesh, arriving))


def after_round(
    program: Program, waiting: Waiting, received: dict[str, Received], times: dict[str, Times]
) -> Waiting:
    """What is on its way after a round, of bucket name -> what its participants sent, and their
    times."""
    deadline = program.options[0].profile.deadline
    # Who goes on waiting has waited for a whole deadline; all others' uploads are there.
    left = np.maximum(waiting.uploads.left - deadline, 0)
    sent, cost = dict(waiting.sent), jax.tree.map(np.copy, waiting.uploads.cost)
    for name, own in times.items():
        if not own.late.any():
            continue
        roster = program.clients[name].roster
        # beyond the end nothing is written
        places = np.where(own.late, own.rows, len(roster.steps))
        sent[name] = _put(
            sent[name], (received[name].uplink, received[name].info), collect(program.mesh, places)
        )
        who = roster.client(own.rows[own.late])
        left[who] = own.seconds[own.late] - deadline
        for old, new in zip(cost, own.cost):
            old[who] = new[own.late]
    return Waiting(sent, OnItsWay(left, cost))


def regrouped_waiting(parts: Sequence[tuple[Waiting, Sequence[int]]]) -> Waiting:
    """Of several runs, the trials that are listed for each, as one."""

    def join(*leaves):
        trials = [len(waiting.uploads.left) for waiting, _ in parts]
        chosen = [
            x.reshape(n, -1, *x.shape[1:])[np.array(t)]
            for x, n, (_, t) in zip(leaves, trials, parts)
        ]
        return (
            (jnp if isinstance(leaves[0], jax.Array) else np)
            .concatenate(chosen)
            .reshape(-1, *leaves[0].shape[1:])
        )

    return jax.tree.map(join, *(waiting for waiting, _ in parts))


@jax.jit
def _put(stored: PyTree, new: PyTree, places: jax.Array) -> PyTree:
    return jax.tree.map(lambda x, y: x.at[places].set(y, mode="drop"), stored, new)
