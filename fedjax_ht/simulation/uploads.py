"""Uploads on their way from the participants to the server: answers, deadline, late arrivals.

The one place that turns answers, whatever carried them, into what the server's step reads.

The seconds of a round are simulated, computed on the host by exact bytes; no compiled program knows
of them. An upload that misses the deadline is lost; or, where `Profile.late` says so, its client
goes on with it in the next round, and takes part in nothing else till it arrives. Every round waits
for such uploads as for its participants', and no longer than the deadline. They reach the server as
they were sent, beside those of the round.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.mesh import collect, collect_rows, fetch, in_one_memory
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.trees import PyTree, join_trees, take
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.roster import Roster


class Answers(NamedTuple):
    """Answers of a bucket's participants: [P], in the order of the transport.

    Attributes:
      ids: int64 [m], the participants, ascending.
      padded_rows: int32 [..], where these stand among the P; filled up with PADDING to a length
        that is the same in every round.
      in_order: True if the server gets the P rows as they are.
      info: the knowledge of the P participants.
      results: the results of the P participants; `deliver` takes the uplinks out.
      scores: {"test": Scores}, of the models as training left them.
      score_rows: int [m], where the participants stand in `scores`.
      idle: float64 [2], see `roster.idle_lane_steps`.
      seconds: float64 [P], simulated, of a participant's round; None where nothing takes time.
      late: bool [P], uploads that missed the deadline; False of a participant that sent nothing.
    """

    ids: np.ndarray
    padded_rows: np.ndarray
    in_order: bool
    info: ClientInfo
    results: ClientResult
    scores: dict[str, Scores]
    score_rows: np.ndarray
    idle: np.ndarray
    seconds: np.ndarray | None = None
    late: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """Rows of the participants among the P, int32 [m]."""
        return self.padded_rows[: len(self.ids)]


class Devices(NamedTuple):
    """The clients' simulated devices, with the FLOPs and places of the clients on them.

    Attributes:
      profile: the abilities of the devices; None where nothing is simulated.
      flops: () -> FLOPs of each client's round, float64 [num_clients]; traced where it is first
        asked for.
      mesh: the devices that really run.
      rosters: bucket name -> its clients' places; empty where no client is on this machine.
      num_clients: number of clients in the federation.
    """

    profile: Profile | None
    flops: Callable[[], np.ndarray]
    mesh: Mesh
    rosters: dict[str, Roster]
    num_clients: int


class Waiting(NamedTuple):
    """Uploads that are on their way between two rounds.

    Attributes:
      sent: bucket name -> (uplink, ClientInfo) as they were sent, stacked over the bucket's rows,
        on the server's device; of a client that has nothing on its way they may be anything.
      left: float64 [num_clients], seconds of the next round after which a client's upload
        arrives; 0 where none is on its way.
      cost: the uploads' cost on the wire, int64 [num_clients].
    """

    sent: dict[str, tuple[PyTree, ClientInfo]]
    left: np.ndarray
    cost: WireCost

    @property
    def unfinished(self) -> np.ndarray:
        """Clients that are not done with an earlier round, bool [num_clients]."""
        return self.left > 0

    def arriving(self, profile: Profile) -> np.ndarray:
        """Clients whose upload arrives in the next round, bool [num_clients]."""
        return self.unfinished & ~profile.too_late(self.left)


Delivery = tuple[dict[str, Received], dict[str, np.ndarray]]
"""Uplinks that the server gets, {bucket name: Received}; and the rows of them that it reads,
{bucket name: int32 [m], by client id, negative for padding}. A bucket whose uplinks are in order
has none."""


def deliver(
    devices: Devices,
    waiting: Waiting | None,
    answers: dict[str, Answers],
    sent_rounds: tuple[int, np.ndarray] = (0, np.zeros(0)),
) -> tuple[Delivery, dict[str, Answers], Waiting | None]:
    """Delivers the uplinks of a round's participants to the server, and those of earlier rounds
    that arrive in it.

    Args:
      devices: the clients' devices.
      waiting: the uploads that were on their way before the round; None where late uploads are
        lost.
      answers: the answers of the round's participants.
      sent_rounds: number of the round, and the last round before it in which each client took part,
        int [num_clients]: that of an upload which arrives late.

    Returns:
      What the server gets; the answers with their times, without the uplinks; and what is on its
      way after the round.
    """
    answers = _on_time(devices, answers)
    received, rows, without_uplinks = {}, {}, {}
    for name, part in answers.items():
        result = part.results
        uplinks = Received(result.uplink, part.info, result.arrived)
        if part.in_order:
            received[name] = collect(devices.mesh, uplinks)
        elif waiting is None and in_one_memory(devices.mesh):
            received[name] = collect_rows(devices.mesh, uplinks, part.padded_rows)
        else:
            received[name], rows[name] = collect(devices.mesh, uplinks), part.padded_rows
        without_uplinks[name] = part._replace(results=result._replace(uplink=()))
    if waiting is None:
        return (received, rows), without_uplinks, None
    joined = _with_earlier(devices, waiting, received, without_uplinks, sent_rounds)
    return joined, without_uplinks, _after_round(devices, waiting, received, without_uplinks)


def _on_time(devices: Devices, answers: dict[str, Answers]) -> dict[str, Answers]:
    """Adds simulated times to answers; uploads that miss the deadline no longer arrive. The
    identity where nothing takes simulated time."""
    profile = devices.profile
    if profile is None or not profile.rates():
        return answers
    flops = None
    if profile.flops is not None:
        flops = devices.flops()
    messages = {}
    for name, part in answers.items():
        result = part.results
        messages[name] = (result.arrived, result.downlink_cost, result.uplink_cost)
    timed = {}
    for name, (sent, down, up) in fetch(messages).items():
        ids, rows = answers[name].ids, answers[name].rows
        work = np.zeros(len(ids)) if flops is None else flops[ids]
        seconds, late = np.zeros(len(sent)), np.zeros(len(sent), bool)
        seconds[rows] = profile.seconds(ids, work, take(down, rows), take(up, rows))
        late[rows] = sent[rows] & profile.too_late(seconds[rows])
        results = answers[name].results._replace(
            arrived=sent & ~late, downlink_cost=down, uplink_cost=up
        )
        timed[name] = answers[name]._replace(results=results, seconds=seconds, late=late)
    return timed


def _with_earlier(
    devices: Devices,
    waiting: Waiting,
    received: dict[str, Received],
    answers: dict[str, Answers],
    sent_rounds: tuple[int, np.ndarray],
) -> Delivery:
    """Joins a round's uplinks with those of earlier rounds that arrive in it."""
    round, last_round = sent_rounds
    all_received, all_rows = {}, {}
    for name, part in answers.items():
        roster, earlier = devices.rosters[name], _arrivals(devices, waiting, name)
        # A client takes part in nothing else till its upload arrives.
        rounds = np.full(len(received[name].arrived), round), last_round[roster.members]
        now, before = collect(devices.mesh, tuple(x.astype(np.int32) for x in rounds))
        earlier = earlier._replace(info=earlier.info._replace(sent_round=before))
        behind = np.arange(len(earlier.arrived), dtype=np.int32)
        # Padding sorts behind every client; a client never stands in both halves.
        ids = np.full(len(part.padded_rows), devices.num_clients)
        ids[: len(part.ids)] = part.ids
        order = np.argsort(np.concatenate([ids, roster.members]), kind="stable")
        current = received[name]
        current = current._replace(info=current.info._replace(sent_round=now))
        all_received[name] = join_trees(jnp.concatenate, (current, earlier))
        both = np.concatenate([part.padded_rows, len(received[name].arrived) + behind])
        all_rows[name] = both[order]
    return all_received, all_rows


def _arrivals(devices: Devices, waiting: Waiting, name: str) -> Received:
    """Returns a bucket's uploads of earlier rounds, of all rows; those that come in the next round
    have arrived."""
    roster = devices.rosters[name]
    assert devices.profile is not None  # without one nothing waits
    by_row = waiting.arriving(devices.profile)[roster.members]
    return Received(*waiting.sent[name], collect(devices.mesh, by_row))


def _after_round(
    devices: Devices,
    waiting: Waiting,
    received: dict[str, Received],
    answers: dict[str, Answers],
) -> Waiting:
    """Returns the uploads on their way after a round, from its uplinks and its timed answers."""
    assert devices.profile is not None  # without one nothing waits
    deadline = devices.profile.deadline
    # Who goes on waiting has waited for a whole deadline; all others' uploads are there.
    left = np.maximum(waiting.left - deadline, 0)
    sent, cost = dict(waiting.sent), jax.tree.map(np.copy, waiting.cost)
    for name, part in answers.items():
        assert part.seconds is not None and part.late is not None  # as wherever uploads may wait
        if not part.late.any():
            continue
        is_late = part.late[part.rows]
        ids, rows = part.ids[is_late], part.rows[is_late]
        roster = devices.rosters[name]
        # Beyond the end nothing is written.
        slots = np.full(len(part.late), len(roster.members))
        slots[rows] = roster.rows(ids)
        new = (received[name].uplink, received[name].info)
        sent[name] = _put(sent[name], new, collect(devices.mesh, slots))
        left[ids] = part.seconds[rows] - deadline
        for old, of_bucket in zip(cost, part.results.uplink_cost):
            old[ids] = np.asarray(of_bucket)[rows]
    return Waiting(sent, left, cost)


@jax.jit
def _put(stored: PyTree, new: PyTree, places: jax.Array) -> PyTree:
    def put(x, y):
        return x.at[places].set(y, mode="drop")

    return jax.tree.map(put, stored, new)


def nobody_waits(devices: Devices, forms: dict[str, PyTree], infos: ClientInfo) -> Waiting:
    """Returns the uploads on their way before the first round: none.

    Args:
      devices: the clients' devices.
      forms: bucket name -> the form of its uplinks, `jax.ShapeDtypeStruct`s.
      infos: the knowledge of every client, leading axis [num_clients].
    """
    sent = {}
    info = take(infos, 0)  # any client's: all have one form
    for name, form in forms.items():
        rows = len(devices.rosters[name].members)

        def zeros(x, rows=rows):
            return np.zeros((rows, *x.shape), x.dtype)

        sent[name] = collect(devices.mesh, jax.tree.map(zeros, (form, info)))
    shape = infos.id.shape
    cost = WireCost(*(np.zeros(shape, np.int64) for _ in WireCost._fields))
    return Waiting(sent, np.zeros(shape), cost)
