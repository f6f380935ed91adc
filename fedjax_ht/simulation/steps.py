"""What moves the state of a run: its beginning, a round, and an evaluation, which leaves it as it
is."""

import functools
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.evaluation import Asked, Scores
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import all_weights, weights_of
from fedjax_ht.core.mesh import collect, fetch, scatter, server_copy, share, spread
from fedjax_ht.core.method import ClientInfo, PyTree, Received
from fedjax_ht.core.round import ClientResult, Participant, TrialServers
from fedjax_ht.simulation.clock import Times, simulated, times_of
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.program import Clients, Program
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.simulation.roster import (
    PADDING,
    Roster,
    blocks,
    idle_lane_steps,
    lay_out,
    positions,
    rows_of_trial,
    schedule,
)
from fedjax_ht.simulation.spending import epsilons
from fedjax_ht.simulation.stages import Seconds, stage
from fedjax_ht.simulation.trials import of_trial
from fedjax_ht.simulation.waiting import Waiting, after_round, nobody_waits, with_arrivals


class SimulationState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      round: rounds done.
      servers: the method's server states, stacked over trials.
      clients: bucket name -> stored states. On one device they are stacked over the bucket's rows:
        its clients by ascending id, trial after trial. Of clients that keep nothing between rounds
        they mean nothing.
      last_round: int32 [trials, num_clients], the last round in which the server reached each; -1
        for never.
      changed: bucket name -> int32 [rows], rounds done when a row's state last changed; 0 for
        never. Without the buckets whose clients keep nothing between rounds.
      waiting: uploads that arrive in a later round; None where late ones are lost.
    """

    round: int
    servers: PyTree
    clients: dict[str, PyTree]
    last_round: np.ndarray
    changed: dict[str, np.ndarray]
    waiting: Waiting | None = None

    @property
    def server(self) -> PyTree:
        """The server state of the only trial."""
        if len(self.last_round) > 1:
            raise ValueError(f"there are {len(self.last_round)} trials: see `servers`")
        return of_trial(self.servers, 0)


def copy_state(state: SimulationState) -> SimulationState:
    """Copies a state, to be kept: a round works in place on the arrays of the one that it is given.

    Example:
      >>> best = fl.copy_state(state)  # in an `after_round` of `fl.run`
      >>> simulation.evaluate(best)
    """

    def copied(x):
        return x.copy() if isinstance(x, jax.Array | np.ndarray) else x

    copy = jax.tree.map(copied, state)
    return copy._replace(round=int(state.round))  # a whole number also where all was made NumPy


class Now(NamedTuple):
    """What a round or an evaluation starts from.

    Attributes:
      info: of every client, NumPy with leading axes [trials, num_clients].
      round: int32 scalar, on all devices.
      servers: likewise.
    """

    info: ClientInfo
    round: jax.Array
    servers: TrialServers


class Plan(NamedTuple):
    """A bucket's participants before they train.

    Attributes:
      rows: int [trials, ...], each trial's.
      flat: their layout.
      states: on the devices, what the schedules have slots in.
      schedule: who trains when, on the devices.
      scored: their layout when they are scored, padded as for an evaluation, which is then the same
        program.
      scoring: who is scored when, on the devices.
    """

    rows: list[np.ndarray]
    flat: np.ndarray
    states: PyTree
    schedule: Schedule
    scored: np.ndarray
    scoring: Schedule


class Trained(NamedTuple):
    """A bucket's part of a round.

    Attributes:
      stored: its states at rest.
      changed: see `SimulationState`; None where its clients keep nothing.
      received: what the server gets, on its device.
      rows: int32 [trials, m], each trial's rows in that.
      flat: the layout of who took part.
      result: their results by that layout, without the uplinks.
      scored: the layout of the scores.
      scores: {"test": Scores} by that, of the models as training left them.
      idle: see `roster.idle_lane_steps`.
      times: by the layout of who took part; None where nothing takes simulated time.
    """

    stored: PyTree
    changed: np.ndarray | None
    received: Received
    rows: np.ndarray
    flat: np.ndarray
    result: ClientResult
    scored: np.ndarray
    scores: dict[str, Scores]
    idle: np.ndarray
    times: Times | None = None


def first_state(program: Program) -> SimulationState:
    """Before the first round."""

    given = {b.name: share(program.mesh, weights_of(b)) for b in program.federation.buckets}

    def first_states(name: str, clients: Clients, flat: np.ndarray) -> PyTree:
        roster = clients.roster
        trial, client = roster.client(np.where(flat == PADDING, 0, flat))
        # With shared_init the bucket's first client stands for all of them.
        source = (
            np.full_like(client, roster.members[0]) if program.options[0].shared_init else client
        )
        own = jax.tree.map(lambda x: x[trial], program.settings)
        rows = scatter(program.mesh, (program.own_seeds[trial], source.astype(np.int32), own))
        return clients.first_states(rows, given[name])

    stored = {
        name: clients.store.init(clients.roster, functools.partial(first_states, name, clients))
        for name, clients in program.clients.items()
    }
    keeping = {name: clients.roster for name, clients in program.clients.items() if clients.keeps}
    changed = {name: np.zeros(len(roster.steps), np.int32) for name, roster in keeping.items()}
    last_round = np.full(program.train_counts.shape, -1, np.int32)
    weights = collect(program.mesh, all_weights(program.federation))
    servers = collect(
        program.mesh, program.server.first((program.server.seeds, program.server.settings), weights)
    )
    state = SimulationState(0, servers, stored, last_round, changed)
    return state._replace(waiting=nobody_waits(program, clients_info(program, state)))


def run_round(
    program: Program, state: SimulationState, score: bool = True
) -> tuple[SimulationState, list[RoundReport]]:
    """One round of all trials, and a report of each; the old state's buffers are donated. Without
    `score` nobody scores the participants as training left them."""
    mesh, server, n = program.mesh, program.server, program.federation.num_clients
    busy = [None] * len(program.options) if state.waiting is None else state.waiting.uploads.busy
    chosen = [choose_participants(o, n, state.round, own) for o, own in zip(program.options, busy)]
    there = [o.there(n, state.round) for o in program.options]
    now = _now(program, state)
    seconds, start = ({} if program.options[0].time_stages else None), time.perf_counter()
    trained = _timed(program, _train(program, state, now, chosen, score, seconds))

    number = collect(mesh, np.int32(state.round))
    received = own_received = {name: part.received for name, part in trained.items()}
    if state.waiting is None:
        rows = {
            name: part.rows
            for name, part in trained.items()
            if not program.clients[name].roster.in_order
        }
    else:
        parts = {name: (part.received, part.rows, part.flat) for name, part in trained.items()}
        received, rows = with_arrivals(program, state.waiting, parts)
    splits, samples = {}, ()
    if program.method.sees_data:
        splits, samples = {"train": server.pooled["train"]}, server_copy(program.samples)
    own = (state.servers, server.seeds, server.settings, collect(mesh, rows), splits)
    shared = (received, number, server.pretrained, samples)
    new, result = stage(seconds, "serve", lambda: server.serve(own, shared))

    last_round = state.last_round.copy()
    for reached, (ids, _) in zip(last_round, chosen):
        reached[ids] = state.round
    stored = {name: part.stored for name, part in trained.items()}
    changed = {name: part.changed for name, part in trained.items() if part.changed is not None}
    reports = _reports(program, trained, result, there, state.waiting)
    waiting = state.waiting
    if waiting is not None:
        waiting = after_round(
            program, waiting, own_received, {name: part.times for name, part in trained.items()}
        )
    state = SimulationState(state.round + 1, new, stored, last_round, changed, waiting)
    spent = epsilons(program, state.round)
    if seconds is not None:
        seconds["host"] = time.perf_counter() - start - sum(seconds.values())
    return state, [
        report._replace(epsilon=epsilon, stages=seconds) for report, epsilon in zip(reports, spent)
    ]


def _train(
    program: Program,
    state: SimulationState,
    now: Now,
    chosen: Sequence[tuple[np.ndarray, np.ndarray]],
    score: bool,
    seconds: Seconds | None,
) -> dict[str, Trained]:
    """The participants of every bucket train; `chosen` are each trial's ids and which of them are
    dropped."""
    plans = {name: _plan(program, name, state, now, chosen) for name in program.clients}
    schedules = {name: plan.schedule for name, plan in plans.items()}
    data = {name: clients.data for name, clients in program.clients.items()}
    states = {name: plan.states for name, plan in plans.items()}
    asked = program.after_training if score else program.nothing
    done = stage(
        seconds,
        "train",
        lambda: program.train(states, schedules, now.servers, data, (now.round, asked)),
    )
    kept = {name: states for name, (states, _) in done.items() if program.clients[name].keeps}
    scoring = {name: plans[name].scoring for name in kept}
    # of clients that keep nothing they are made there
    scores = {name: found for name, (_, (_, found)) in done.items()}
    scores |= stage(seconds, "score", lambda: _score(program, kept, scoring, now, asked))
    return {
        name: _trained(program, name, state, plan, done[name][0], done[name][1][0], scores[name])
        for name, plan in plans.items()
    }


def _plan(
    program: Program,
    name: str,
    state: SimulationState,
    now: Now,
    chosen: Sequence[tuple[np.ndarray, np.ndarray]],
) -> Plan:
    roster, store = program.clients[name].roster, program.clients[name].store
    mine = [roster.rows(t, ids) for t, (ids, _) in enumerate(chosen)]
    lost = np.concatenate([roster.rows(t, ids[dropped]) for t, (ids, dropped) in enumerate(chosen)])
    flat = lay_out(roster, np.concatenate(mine), roster.capacity)
    scored = (
        lay_out(roster, np.concatenate(mine), store.block(roster))
        if program.clients[name].keeps
        else flat
    )
    states = store.load(state.clients[name], roster, flat)
    training, scoring = (_schedule(program, name, layout, now, lost) for layout in (flat, scored))
    return Plan(mine, flat, states, training, scored, scoring)


def _schedule(
    program: Program, name: str, flat: np.ndarray, now: Now, lost: np.ndarray
) -> Schedule:
    roster, store = program.clients[name].roster, program.clients[name].store
    return scatter(program.mesh, schedule(roster, flat, store.slots(roster, flat), now.info, lost))


def _score(
    program: Program,
    states: dict[str, PyTree],
    schedules: dict[str, Schedule],
    now: Now,
    asked: Asked,
) -> dict[str, dict[str, Scores]]:
    data = {name: program.clients[name].data for name in states}
    return program.score(states, schedules, now.servers, data, (now.round, asked))


def _trained(
    program: Program,
    name: str,
    state: SimulationState,
    plan: Plan,
    states: PyTree,
    result: ClientResult,
    scores: dict[str, Scores],
) -> Trained:
    roster, store = program.clients[name].roster, program.clients[name].store
    stored = store.save(state.clients[name], states, roster, plan.flat)
    changed = None
    if program.clients[name].keeps:
        changed = state.changed[name].copy()
        changed[np.concatenate(plan.rows)] = state.round + 1
    received = collect(
        program.mesh, Received(result.uplink, plan.schedule.own.info, result.arrived)
    )
    size = min(program.options[0].participants(program.federation.num_clients), len(roster.members))
    rows = np.stack([positions(plan.flat, mine, size) for mine in plan.rows])
    idle = idle_lane_steps(roster, plan.flat)
    result = result._replace(uplink=())
    return Trained(stored, changed, received, rows, plan.flat, result, plan.scored, scores, idle)


def _timed(program: Program, trained: dict[str, Trained]) -> dict[str, Trained]:
    """A round's parts with the participants' simulated times, and without the uploads that are too
    late."""
    times = times_of(program, {name: (part.flat, part.result) for name, part in trained.items()})
    found = dict(trained)
    for name, own in (times or {}).items():
        part = trained[name]
        received = part.received._replace(arrived=collect(program.mesh, own.arrived))
        result = part.result._replace(arrived=own.arrived)
        found[name] = part._replace(received=received, result=result, times=own)
    return found


def _reports(
    program: Program,
    trained: dict[str, Trained],
    of_server: PyTree,
    there: Sequence[np.ndarray],
    waiting: Waiting | None,
) -> list[RoundReport]:
    """Makes one report a trial; `of_server` are the servers' results, `there` tells who can be
    reached, and `waiting` stood before the round."""
    # The one transfer of a round, but for that of `_timed`.
    results = {name: (part.result, part.scores) for name, part in trained.items()}
    results, of_server = fetch((results, of_server))
    profile = program.options[0].profile
    idle, spent = sum(part.idle for part in trained.values())
    reports = []
    for t in range(len(program.options)):
        mine, times = [], []
        for name, part in trained.items():
            roster, (result, scores) = program.clients[name].roster, results[name]
            # Rows stand in both layouts in one order, that of `roster.by_device`.
            ids, result = rows_of_trial(roster, part.flat, t, result)
            mine.append((ids, (result, rows_of_trial(roster, part.scored, t, scores)[1])))
            times.append((ids, rows_of_trial(roster, part.flat, t, part.times)[1]))
        wasted = float(idle / spent) if spent else 0.0
        earlier = None if waiting is None else of_trial(waiting.uploads, t)
        cost = None if earlier is None else earlier.arriving_cost(profile)
        report = round_report(mine, of_trial(of_server, t), wasted, program.attackers, cost)
        if profile is not None:
            timed = simulated(profile, times, earlier) if profile.rates() else {}
            report = report._replace(absent=int(np.sum(~there[t])), **timed)
        reports.append(report)
    return reports


def evaluate(
    program: Program, state: SimulationState, only: np.ndarray | None = None
) -> list[Evaluation]:
    """Scores each trial's clients, all or those of the ids `only`, and its server's model if it has
    one."""
    # After k rounds the newest downlink is the one that round k (counted from 0) starts with.
    now = _now(program, state)
    ids = np.arange(program.federation.num_clients) if only is None else np.asarray(only)
    scored = _scored(program, state, now, ids)
    pooled = None
    if program.method.global_params is not None and program.federation.global_model is not None:
        pooled = program.server.score_global(
            (state.servers, program.server.pooled), server_copy(program.samples)
        )
    scores, pooled = fetch(([s for _, _, s in scored], pooled))
    evaluations = []
    for t, train_counts in enumerate(program.train_counts):
        mine = [rows_of_trial(roster, flat, t, s) for (roster, flat, _), s in zip(scored, scores)]
        evaluations.append(evaluation(train_counts, mine, of_trial(pooled, t)))
    return evaluations


def _scored(
    program: Program, state: SimulationState, now: Now, ids: np.ndarray
) -> list[tuple[Roster, np.ndarray, dict[str, Scores]]]:
    """The clients of `ids`, as many at a time as a device has room for: rosters, layouts, and
    scores by them."""
    layouts, scored, nobody = {}, [], np.zeros(0, np.int64)
    found = [_with_samples(program, trial, ids) for trial in range(len(program.options))]
    rosters = {name: clients.roster for name, clients in program.clients.items()}
    for name, roster in rosters.items():
        rows = np.concatenate([roster.rows(t, own) for t, own in enumerate(found)])
        layouts[name] = blocks(roster, rows, program.clients[name].store.block(roster))
    for flats in itertools.zip_longest(*layouts.values()):
        now_scored = {name: flat for name, flat in zip(layouts, flats) if flat is not None}
        states = {}
        for n, flat in now_scored.items():
            states[n] = program.clients[n].store.load(state.clients[n], rosters[n], flat)
        schedules = {n: _schedule(program, n, flat, now, nobody) for n, flat in now_scored.items()}
        found = _score(program, states, schedules, now, program.in_evaluation)
        scored += [(rosters[n], flat, found[n]) for n, flat in now_scored.items()]
    return scored


def _with_samples(program: Program, trial: int, ids: np.ndarray) -> np.ndarray:
    """Those of `ids` who have any sample to be scored on; all of them where nobody has."""
    counts = sum(program.data.counts[split][trial, ids] for split in program.in_evaluation.splits)
    return ids[counts > 0] if np.any(counts) else ids


def read_clients(program: Program, state: SimulationState, name: str, rows: np.ndarray) -> PyTree:
    """Some of a bucket's states as NumPy; of clients that keep nothing, as the newest downlink
    leaves them."""
    clients = program.clients[name]
    if clients.keeps:
        return clients.store.read(state.clients[name], clients.roster, rows)
    now, held = _now(program, state), []
    for row in rows:
        trial, client = map(int, clients.roster.client(np.int64(row)))
        info = jax.tree.map(lambda x, t=trial, c=client: x[t, c], now.info)
        who = Participant(np.int32(row), np.int32(trial), info, np.True_, np.False_)
        servers = TrialServers(state.servers, program.server.seeds, program.server.settings)
        held.append(
            fetch(clients.received(who, servers, program.data.buckets[name], np.int32(state.round)))
        )
    return jax.tree.map(lambda *xs: np.stack(xs), *held)


def clients_info(program: Program, state: SimulationState) -> ClientInfo:
    """Of every client, NumPy with leading axes [trials, num_clients]."""
    count, n = program.train_counts.shape
    ids = np.tile(np.arange(n, dtype=np.int32), (count, 1))
    return ClientInfo(ids, program.train_counts.astype(np.int32), state.last_round.astype(np.int32))


def _now(program: Program, state: SimulationState) -> Now:
    servers = TrialServers(
        *(spread(program.mesh, x) for x in (state.servers, program.own_seeds, program.settings))
    )
    return Now(clients_info(program, state), spread(program.mesh, np.int32(state.round)), servers)
