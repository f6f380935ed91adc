"""A whole federation, on one device or many: the compiled rounds bound to its data, and the state that they move."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core import wire
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.mesh import client_mesh, collect, fetch, scatter, server_copy, spread
from fedjax_ht.core.method import ClientInfo, Method, PyTree, Received
from fedjax_ht.core.round import Channel, Servers, bucket_evaluation, bucket_round, first_states, on_mesh
from fedjax_ht.data.client_data import FederationData, join_trials
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.simulation import trials as per_trial
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.report import Evaluation, RoundReport, evaluation, round_report
from fedjax_ht.simulation.roster import (
    PADDING,
    Roster,
    blocks,
    idle_lane_steps,
    lay_out,
    make_roster,
    positions,
    rows_of_trial,
    schedule,
)
from fedjax_ht.simulation.store import STORES


class SimulationState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
      round: rounds done.
      server: the method's server state; with trials, stacked over them.
      clients: bucket name -> stored states. On one device they are stacked over the bucket's rows: its clients by
        ascending id, trial after trial.
      last_round: int32 [num_clients] or [trials, num_clients], the last round in which the server reached each; -1 for
        never.
      changed: bucket name -> int32 [rows], rounds done when a row's state last changed; 0 for never.
    """

    round: int
    server: PyTree
    clients: dict[str, PyTree]
    last_round: np.ndarray
    changed: dict[str, np.ndarray]


class Simulation(NamedTuple):
    """A federation ready to run; every function is compiled at its first call.

    Attributes:
      init: () -> SimulationState.
      run_round: (SimulationState) -> (SimulationState, RoundReport). The old state's buffers are donated.
      evaluate: (SimulationState, ids or None) -> Evaluation of those clients, or of all.
      read_clients: (SimulationState, bucket name, rows) -> those states as NumPy.
      write_clients: (SimulationState, bucket name, rows, states) -> SimulationState with those states put in place.
      trials: None, or how many run together; reports and evaluations are then lists, one per trial.
      client_flops: () -> float64 [num_clients] or [trials, num_clients], FLOPs of each client in a round that it takes
        part in (see `metrics.flops`); it traces every architecture once more.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[[SimulationState], tuple[SimulationState, RoundReport | list[RoundReport]]]
    evaluate: Callable[..., Evaluation | list[Evaluation]]
    read_clients: Callable[[SimulationState, str, np.ndarray], PyTree]
    write_clients: Callable[[SimulationState, str, np.ndarray, PyTree], SimulationState]
    trials: int | None
    client_flops: Callable[[], np.ndarray]


def make_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    training: LocalTraining,
    options: SimulationOptions | None = None,
    extra: PyTree = (),
) -> Simulation:
    """Binds a method to a federation and its data.

    Args:
      method: a factory's result; its hyper-parameters, local training among them, are bound already.
      federation: the buckets.
      data: the clients' data.
      training: the same recipe the method trains by; here it only tells how many steps each client takes.
      options: how the federation runs.
      extra: per-client settings of the method (`ClientInfo.extra`), arrays with a leading axis [num_clients].

    Raises:
      ValueError: the method cannot run on this federation.
    """
    return _bind(method, federation, data, training, options or SimulationOptions(), extra, None)


def make_trials(
    method: Method,
    federation: Federation,
    data: Sequence[FederationData],
    training: LocalTraining,
    options: SimulationOptions | None = None,
    extra: PyTree = (),
) -> Simulation:
    """Several trials in one program: trial t runs on data[t] with seed `options.seed + t`, and as it would alone.

    All entries of `data` hold the same images; they may be one split repeated. Other arguments as `make_simulation`.
    """
    return _bind(method, federation, join_trials(data), training, options or SimulationOptions(), extra, len(data))


def _bind(
    method: Method,
    federation: Federation,
    data: FederationData,
    training: LocalTraining,
    options: SimulationOptions,
    extra: PyTree,
    trials: int | None,
) -> Simulation:
    method.check(federation)
    mesh = client_mesh(options.devices)
    store = STORES[options.client_store](mesh)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    n, count = federation.num_clients, trials or 1
    options_of = [dataclasses.replace(options, seed=options.seed + t) for t in range(count)]
    seeds = np.array([o.seed for o in options_of], np.uint32)
    seeds = collect(mesh, seeds if trials else seeds[0])
    seeds_everywhere = spread(mesh, seeds)
    train_counts = data.counts["train"].reshape(count, n)
    settings = jax.tree.map(lambda x: np.broadcast_to(x, (count, *np.shape(x))), extra)
    splits = tuple(s for s in ("test", "val") if data.counts[s].any())

    first = next(iter(data.buckets.values()))
    images = first._replace(splits={})
    images = images._replace(**spread(mesh, {k: v for k, v in images._asdict().items() if k != "splits"}))
    rosters: dict[str, Roster] = {}
    bucket_data, starters, trainers, evaluators = {}, {}, {}, {}
    for b in federation.buckets:
        members = np.array(federation.members(b))
        steps = num_steps(training, train_counts[:, members])
        roster = make_roster(members, steps, options.participants(n), options.lanes, mesh)
        bound = (method, federation, b, channel, roster.lanes)
        received = options.evaluate == "received"
        rosters[b.name] = roster
        bucket_data[b.name] = images._replace(splits=spread(mesh, data.buckets[b.name].splits))
        starters[b.name] = first_states(method, b, mesh)
        trainers[b.name] = on_mesh(bucket_round(*bound), mesh, donate=True)
        evaluate_bucket = bucket_evaluation(*bound, received, options.eval_batch_size, splits)
        evaluators[b.name] = on_mesh(evaluate_bucket, mesh, donate=False)
    first_server = per_trial.first_server(method, federation, trials)
    serve, frozen = per_trial.serve(method, federation, trials), collect(mesh, method.frozen)
    charge_all = per_trial.charge_all(method, federation, channel, trials)
    score_global = per_trial.score_global(method, federation, options, trials)
    pooled_sets = collect(mesh, data.pooled)

    def infos(last_round: np.ndarray) -> ClientInfo:
        ids = np.tile(np.arange(n, dtype=np.int32), (count, 1))
        return ClientInfo(ids, train_counts.astype(np.int32), last_round.reshape(count, n).astype(np.int32), settings)

    def unlist(per_trial: list | np.ndarray):
        return per_trial if trials else per_trial[0]

    def init() -> SimulationState:
        def make(roster: Roster, name: str) -> Callable:
            def states(flat):
                trial, client = roster.client(np.where(flat == PADDING, 0, flat))
                # With shared_init the bucket's first client stands for all of them.
                source = np.full_like(client, roster.members[0]) if options.shared_init else client
                own_seeds = np.array([o.seed for o in options_of], np.uint32)[trial]
                return starters[name](scatter(mesh, (own_seeds, source.astype(np.int32))))

            return states

        clients = {name: store.init(roster, make(roster, name)) for name, roster in rosters.items()}
        changed = {name: np.zeros(len(roster.steps), np.int32) for name, roster in rosters.items()}
        last_round = np.full((count, n) if trials else n, -1, np.int32)
        return SimulationState(0, collect(mesh, first_server(seeds, ())), clients, last_round, changed)

    def run_round(state: SimulationState):
        chosen = [choose_participants(o, n, state.round) for o in options_of]
        info, number = infos(state.last_round), np.int32(state.round)
        shared = Servers(spread(mesh, state.server), seeds_everywhere)
        clients, changed, received, rows_of, results, idle = {}, {}, {}, {}, [], np.zeros(2)
        for name, roster in rosters.items():
            mine = [roster.rows(t, ids) for t, (ids, _) in enumerate(chosen)]
            lost = np.concatenate([roster.rows(t, ids[dropped]) for t, (ids, dropped) in enumerate(chosen)])
            flat = lay_out(roster, np.concatenate(mine), roster.capacity)
            states, slots = store.load(state.clients[name], roster, flat)
            plan = schedule(roster, flat, slots, info, lost)
            states, out = trainers[name](states, scatter(mesh, plan), shared, bucket_data[name], spread(mesh, number))
            clients[name] = store.save(state.clients[name], states, roster, flat)
            changed[name] = state.changed[name].copy()
            changed[name][np.concatenate(mine)] = state.round + 1
            received[name] = collect(mesh, Received(out.uplink, plan.rows.info, out.arrived))
            if trials:
                width = min(options.participants(n), len(roster.members))
                rows_of[name] = np.stack([positions(flat, rows, width) for rows in mine])
            results.append((flat, out._replace(uplink=())))
            idle += idle_lane_steps(roster, flat)
        everyone = None
        if method.recipients == "all":
            own = (state.server, seeds, collect(mesh, info if trials else jax.tree.map(lambda x: x[0], info)))
            everyone = charge_all(own, collect(mesh, number))
        own = (state.server, seeds, collect(mesh, rows_of))
        server, server_metrics = serve(own, (received, collect(mesh, number), frozen))
        last_round = state.last_round.copy()
        for reached, (ids, _) in zip(last_round.reshape(count, n), chosen):
            reached[ids if everyone is None else slice(None)] = state.round
        # The one transfer of a round.
        results, server_metrics, everyone = fetch((results, server_metrics, everyone))
        wasted = float(idle[0] / idle[1]) if idle[1] else 0.0
        reports = []
        for t in range(count):
            mine = [rows_of_trial(roster, flat, t, out) for roster, (flat, out) in zip(rosters.values(), results)]
            own = (
                jax.tree.map(lambda x, t=t: x[t], (server_metrics, everyone)) if trials else (server_metrics, everyone)
            )
            reports.append(round_report(mine, *own, wasted))
        return SimulationState(state.round + 1, server, clients, last_round, changed), unlist(reports)

    def evaluate(state: SimulationState, only: np.ndarray | None = None):
        # After k rounds the newest downlink is the one that round k (counted from 0) starts with.
        info, number = infos(state.last_round), spread(mesh, np.int32(state.round))
        shared = Servers(spread(mesh, state.server), seeds_everywhere)
        ids = np.arange(n) if only is None else np.asarray(only)
        scored = []
        for name, roster in rosters.items():
            rows = np.concatenate([roster.rows(t, ids) for t in range(count)])
            for flat in blocks(roster, rows, store.block(roster)):
                states, slots = store.load(state.clients[name], roster, flat)
                plan = schedule(roster, flat, slots, info, rows[:0])
                scores = evaluators[name](states, scatter(mesh, plan), shared, bucket_data[name], number)
                scored.append((roster, flat, scores))
        pooled = None
        if method.global_params is not None and federation.global_model is not None:
            pooled = score_global((state.server, pooled_sets), server_copy(images))
        scores, pooled = fetch(([s for _, _, s in scored], pooled))
        evaluations = []
        for t in range(count):
            mine = [rows_of_trial(roster, flat, t, s) for (roster, flat, _), s in zip(scored, scores)]
            own = jax.tree.map(lambda x, t=t: x[t], pooled) if trials else pooled
            evaluations.append(evaluation(train_counts[t], mine, own))
        return unlist(evaluations)

    def read_clients(state: SimulationState, name: str, rows: np.ndarray) -> PyTree:
        return store.read(state.clients[name], rosters[name], rows)

    def write_clients(state: SimulationState, name: str, rows: np.ndarray, states: PyTree) -> SimulationState:
        stored = store.write(state.clients[name], rosters[name], rows, states)
        return state._replace(clients=state.clients | {name: stored})

    def client_flops() -> np.ndarray:
        flops = np.zeros((count, n))
        for b in federation.buckets:
            per_row = bucket_flops(method, federation, b, data.buckets[b.name], extra)
            flops[:, federation.members(b)] = per_row.reshape(count, -1)
        return unlist(flops)

    return Simulation(init, run_round, evaluate, read_clients, write_clients, trials, client_flops)
