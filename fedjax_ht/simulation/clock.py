"""The clock of simulated devices: deadlines, and uploads that arrive in a later round.

The seconds of a round are simulated, computed on the host from exact bytes; compiled programs do
not see them. An upload that misses the deadline is lost. With `Profile.late` "arrives", the client
instead keeps uploading, and joins no round until the upload has arrived. Every round waits for such
uploads as for its participants', but no longer than the deadline. They reach the server as they
were sent, together with those of the round.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.mesh import collect, fetch
from fedjax_ht.core.trees import PyTree, join_trees, take
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.report import RoundReport
from fedjax_ht.simulation.serving import Answers, Delivery, deliver
from fedjax_ht.simulation.state import SimulationState, Waiting


def deliver_in_time(
    program: Program, state: SimulationState, answers: dict[str, Answers]
) -> tuple[Delivery, dict[str, Answers], Waiting | None]:
    """Delivers uplinks that meet the deadline, and those of earlier rounds that arrive now.

    Arguments are as for `serving.deliver`.

    Returns:
      The delivery; the answers with their times, without uplinks; and the uploads still on their
      way after the round.
    """
    answers, waiting = _on_time(program, answers), state.waiting
    if waiting is None:
        return deliver(program.mesh, state, answers)
    (received, _), answers, _ = deliver(program.mesh, state, answers, picks=False)
    joined = _with_earlier(program, state, waiting, received, answers)
    return joined, answers, _after_round(program, waiting, received, answers)


def with_times(
    program: Program, state: SimulationState, answers: dict[str, Answers], report: RoundReport
) -> RoundReport:
    """Adds simulated times, absent clients and earlier rounds' uploads to a round's report."""
    profile, waiting = _profile(program), state.waiting
    fields: dict[str, Any] = {}
    if profile.rates():
        fields = _simulated_fields(profile, waiting, answers)
    if waiting is not None:
        earlier = take(waiting.cost, _arriving(waiting, profile))
        fields["arrived"] = report.arrived + np.size(earlier.payload_elements)
        sums = (int(np.sum(x, dtype=np.int64)) for x in earlier)
        fields["uplink"] = WireCost(*(now + before for now, before in zip(report.uplink, sums)))
    reachable = profile.reachable(program.federation.num_clients, state.round)
    return report._replace(absent=int(np.sum(~(reachable | program.new))), **fields)


def _simulated_fields(
    profile: Profile, waiting: Waiting | None, answers: dict[str, Answers]
) -> dict[str, Any]:
    """Returns the report's fields on simulated times, for a profile with rates.

    `waiting` are the uploads on their way before the round.
    """
    parts = []
    for part in answers.values():
        of_clients = take((part.seconds, part.late, part.results.arrived), part.rows)
        parts.append((part.ids, of_clients))
    ids, (seconds, late, arrived) = join_trees(np.concatenate, parts)
    fields: dict[str, Any] = {"late": tuple(sorted(ids[late].tolist()))}
    if waiting is not None:
        arriving = _arriving(waiting, profile)
        fields["arrived_late"] = tuple(np.flatnonzero(arriving).tolist())
        seconds = np.append(seconds, waiting.left)
        arrived = np.append(arrived, arriving)
        late = np.append(late, waiting.unfinished & ~arriving)
    return fields | {"seconds": profile.length(seconds, arrived, late)}


def _on_time(program: Program, answers: dict[str, Answers]) -> dict[str, Answers]:
    """Adds simulated times to answers, and marks uploads that miss the deadline as not arrived.

    Without simulated rates, it returns the answers unchanged.
    """
    profile = _profile(program)
    if not profile.rates():
        return answers
    flops = None
    if profile.flops is not None:
        flops = program.flops()
    messages = {}
    for name, part in answers.items():
        result = part.results
        costs = result.downlink_cost, result.uplink_cost
        messages[name] = (result.arrived, *costs, result.metrics)
    timed = {}
    for name, (sent, down, up, metrics) in fetch(messages).items():
        ids, rows = answers[name].ids, answers[name].rows
        work = np.zeros(len(ids)) if flops is None else flops[ids]
        seconds, late = np.zeros(len(sent)), np.zeros(len(sent), bool)
        seconds[rows] = profile.seconds(ids, work, take(down, rows), take(up, rows))
        late[rows] = sent[rows] & profile.too_late(seconds[rows])
        results = answers[name].results._replace(
            arrived=sent & ~late, downlink_cost=down, uplink_cost=up, metrics=metrics
        )
        timed[name] = answers[name]._replace(results=results, seconds=seconds, late=late)
    return timed


def _with_earlier(
    program: Program,
    state: SimulationState,
    waiting: Waiting,
    received: dict[str, Received],
    answers: dict[str, Answers],
) -> Delivery:
    """Joins a round's uplinks with those of earlier rounds that arrive in it."""
    round, last_round = state.round, state.last_round
    all_received, all_rows = {}, {}
    for name, part in answers.items():
        roster, earlier = program.clients[name].roster, _arrivals(program, waiting, name)
        # A client takes part in no other round until its upload arrives.
        rounds = np.full(len(received[name].arrived), round), last_round[roster.members]
        now, before = collect(program.mesh, tuple(x.astype(np.int32) for x in rounds))
        earlier = earlier._replace(info=earlier.info._replace(sent_round=before))
        behind = np.arange(len(earlier.arrived), dtype=np.int32)
        # Padding is sorted behind all clients; no client is in both halves.
        ids = np.full(len(part.padded_rows), program.federation.num_clients)
        ids[: len(part.ids)] = part.ids
        order = np.argsort(np.concatenate([ids, roster.members]), kind="stable")
        current = received[name]
        current = current._replace(info=current.info._replace(sent_round=now))
        all_received[name] = join_trees(jnp.concatenate, (current, earlier))
        both = np.concatenate([part.padded_rows, len(received[name].arrived) + behind])
        all_rows[name] = both[order]
    return all_received, all_rows


def _profile(program: Program) -> Profile:
    profile = program.options.devices_profile
    assert profile is not None  # without one, rounds have no clock
    return profile


def _arriving(waiting: Waiting, profile: Profile) -> np.ndarray:
    """Returns the clients whose upload arrives in the next round, bool [num_clients]."""
    return waiting.unfinished & ~profile.too_late(waiting.left)


def _arrivals(program: Program, waiting: Waiting, name: str) -> Received:
    """Returns a bucket's uploads of earlier rounds, for all rows.

    Those that arrive in the next round are marked as arrived.
    """
    roster = program.clients[name].roster
    by_row = _arriving(waiting, _profile(program))[roster.members]
    return Received(*waiting.sent[name], collect(program.mesh, by_row))


def _after_round(
    program: Program,
    waiting: Waiting,
    received: dict[str, Received],
    answers: dict[str, Answers],
) -> Waiting:
    """Returns the uploads on their way after a round, given its uplinks and timed answers."""
    deadline = _profile(program).deadline
    # Uploads still on their way took a whole deadline; all others have arrived.
    left = np.maximum(waiting.left - deadline, 0)
    sent, cost, losses = dict(waiting.sent), *jax.tree.map(np.copy, waiting[2:])
    for name, part in answers.items():
        assert part.seconds is not None and part.late is not None  # set if uploads may wait
        if not part.late.any():
            continue
        is_late = part.late[part.rows]
        ids, rows = part.ids[is_late], part.rows[is_late]
        roster = program.clients[name].roster
        # Slots beyond the end are not written.
        slots = np.full(len(part.late), len(roster.members))
        slots[rows] = roster.rows(ids)
        new = (received[name].uplink, received[name].info)
        sent[name] = _put(sent[name], new, collect(program.mesh, slots))
        left[ids] = part.seconds[rows] - deadline
        for old, of_bucket in zip(cost, part.results.uplink_cost):
            old[ids] = np.asarray(of_bucket)[rows]
        if "loss" in part.results.metrics:
            losses[ids] = part.results.metrics["loss"][rows]
    return Waiting(sent, left, cost, losses)


@jax.jit
def _put(stored: PyTree, new: PyTree, places: jax.Array) -> PyTree:
    def put(x, y):
        return x.at[places].set(y, mode="drop")

    return jax.tree.map(put, stored, new)


def nobody_waits(program: Program, forms: dict[str, PyTree], infos: ClientInfo) -> Waiting:
    """Returns the empty `Waiting` before the first round.

    Args:
      program: the parts of the simulation.
      forms: bucket name -> the form of its uplinks, `jax.ShapeDtypeStruct`s.
      infos: every client's `ClientInfo`, leading axis [num_clients].
    """
    sent = {}
    info = take(infos, 0)  # any client will do: all have the same form
    for name, form in forms.items():
        rows = len(program.clients[name].roster.members)

        def zeros(x, rows=rows):
            return np.zeros((rows, *x.shape), x.dtype)

        sent[name] = collect(program.mesh, jax.tree.map(zeros, (form, info)))
    shape = infos.id.shape
    cost = WireCost(*(np.zeros(shape, np.int64) for _ in WireCost._fields))
    return Waiting(sent, np.zeros(shape), cost, np.full(shape, np.nan))
