"""The transport of a simulation: runs buckets of clients in compiled programs on a device mesh.

The programs train a round's participants, and score clients and the server's model in evaluations.
"""

import functools
import itertools
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from fedjax_ht.check.names import short, unknown
from fedjax_ht.core.bucket import weights_of
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.contract import one_line
from fedjax_ht.core.evaluation import EvaluationRequest
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import (
    collect,
    fetch,
    free_bytes,
    in_one_memory,
    scatter,
    share,
    spread,
)
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.round import Participant, RunServer
from fedjax_ht.core.trees import PyTree, join_trees, take
from fedjax_ht.simulation.program import Clients, Program
from fedjax_ht.simulation.report import Evaluation, evaluation, without_attackers
from fedjax_ht.simulation.roster import (
    PADDING,
    Roster,
    clients_of,
    idle_lane_steps,
    lay_out,
    padded,
    schedule,
)
from fedjax_ht.simulation.round import Round, Stage, bytes_of, count_downloads, draw_cohort
from fedjax_ht.simulation.selection import first_reports
from fedjax_ht.simulation.serving import Answers, Delivery, ServerResult, deliver
from fedjax_ht.simulation.state import SimulationState


class RoundInputs(NamedTuple):
    """Inputs of a round or an evaluation.

    Attributes:
      info: every client's `ClientInfo`, NumPy with leading axis [num_clients].
      round: the round, from 0, int32 scalar, on all devices.
      server: the run's server, on all devices.
    """

    info: ClientInfo
    round: jax.Array
    server: RunServer


def first_state(program: Program) -> SimulationState:
    """Returns the state before the first round.

    Raises:
      ValueError: the clients' states do not fit into the devices' memory.
    """
    seed, settings = spread(program.mesh, (program.seed, program.settings))
    weights = {b.name: share(program.mesh, weights_of(b)) for b in program.federation.buckets}
    if program.options.client_store == "device":
        needed = 0
        for name, clients in program.clients.items():
            if clients.programs.keeps:
                ids = jax.ShapeDtypeStruct((program.mesh.size * clients.roster.shard,), "int32")
                make = clients.programs.first_states
                needed += bytes_of(jax.eval_shape(make, ids, seed, settings, weights[name]))
        _require_memory(
            program,
            needed // program.mesh.size,
            "states",
            "set client_store to 'host' on a GPU, or use fewer clients or smaller models",
        )

    def first_states(name: str, clients: Clients, layout: np.ndarray) -> PyTree:
        ids = clients.roster.members[np.where(layout == PADDING, 0, layout)]
        # With shared_init all clients start like the bucket's first one.
        if program.options.shared_init:
            ids = np.full_like(ids, clients.roster.members[0])
        client_ids = scatter(program.mesh, ids.astype(np.int32))
        return clients.programs.first_states(client_ids, seed, settings, weights[name])

    stored, changed = {}, {}
    for name, clients in program.clients.items():
        make = functools.partial(first_states, name, clients)
        stored[name] = clients.programs.store.init(clients.roster, make)
        if clients.programs.keeps:
            changed[name] = np.zeros(len(clients.roster.members), np.int32)
    all_models = collect(program.mesh, all_weights(program.federation))
    server = program.server
    state = SimulationState(
        round=0,
        server=collect(
            program.mesh, program.engine.first_server(server.seed, server.settings, all_models)
        ),
        clients=stored,
        last_round=np.full(program.federation.num_clients, -1, np.int32),
        changed=changed,
    )
    if program.options.select is not None:
        state = state._replace(reports=first_reports(program.data.counts["train"]))
    profile = program.options.devices_profile
    if profile is None or profile.late == "lost":
        return state
    from fedjax_ht.simulation.clock import nobody_waits

    # The forms of uplinks are found by tracing every architecture's round.
    forms, infos = program.engine.uplink_forms(), clients_info(program, state)
    needed = sum(
        len(program.clients[name].roster.members) * bytes_of(form) for name, form in forms.items()
    )
    if in_one_memory(program.mesh):  # all are on one device
        needed //= program.mesh.size
    _require_memory(
        program, needed, "late uploads", "set devices_profile.late to 'lost', or use fewer clients"
    )
    return state._replace(waiting=nobody_waits(program, forms, infos))


def _require_memory(program: Program, needed: int, what: str, remedy: str) -> None:
    """Raises ValueError if a device has less free memory, if that is known.

    Otherwise the operating system might kill the process without a message.
    """
    free = free_bytes(program.mesh)
    if free is not None and needed > free:
        raise ValueError(
            f"the {what} of {program.federation.num_clients} clients take {needed / 1e9:.1f} GB on "
            f"a device, where {free / 1e9:.1f} GB are free; {remedy}"
        )


def compiled_round(program: Program) -> Round:
    """Returns the round of a simulation, composed of the enabled features only."""
    options, num_clients = program.options, program.federation.num_clients
    delivery, additions = functools.partial(deliver, program.mesh), []
    if options.devices_profile is not None:
        from fedjax_ht.simulation.clock import deliver_in_time, with_times

        delivery = functools.partial(deliver_in_time, program)
        additions.append(functools.partial(with_times, program))
    if options.attack.kind is not None:
        from fedjax_ht.trust.attacks import attackers

        bad = attackers(options.attack, num_clients)
        additions.append(functools.partial(without_attackers, bad))
    if options.privacy is not None:
        from fedjax_ht.simulation.privacy_budget import with_epsilon

        additions.append(functools.partial(with_epsilon, program))
    additions += count_downloads(program.federation, program.placed.samples)
    return Round(
        options=options,
        exchange=functools.partial(exchange, program),
        deliver=delivery,
        serve=functools.partial(serve, program),
        additions=tuple(additions),
    )


def exchange(
    program: Program, state: SimulationState, score: bool, stage: Stage
) -> tuple[SimulationState, dict[str, Answers]]:
    """Trains a round's participants and returns their answers; donates the client states' buffers.

    Arguments and results are as for `round.Round.exchange`.
    """
    cohort = draw_cohort(program.options, program.new, state)
    inputs = round_inputs(program, state)
    states, schedules, score_schedules, data, laid_out = {}, {}, {}, {}, {}
    for name, clients in program.clients.items():
        roster, store = clients.roster, clients.programs.store
        rows, lost = roster.rows(cohort.ids), roster.rows(cohort.ids[cohort.dropped])
        (layout,) = (score_layout,) = lay_out(roster, rows, roster.capacity)
        if clients.programs.keeps:
            # Padded as in an evaluation, so that both use the same program.
            (score_layout,) = lay_out(roster, rows, store.block(roster))
            score_schedules[name] = device_schedule(program, name, score_layout, inputs, lost)
        states[name], data[name] = store.load(state.clients[name], roster, layout), clients.data
        schedules[name] = device_schedule(program, name, layout, inputs, lost)
        laid_out[name] = rows, layout, score_layout
    request = program.after_training if score else program.nothing
    when = (inputs.round, request)
    train = functools.partial(program.engine.train, states, schedules, inputs.server, data, when)
    trained = stage("train", train)
    # Clients that keep no state are scored right after training, while their models exist.
    scores = {name: of_bucket for name, (_, (_, of_bucket)) in trained.items()}
    kept = {name: trained[name][0] for name in score_schedules}
    of_kept = kept, score_schedules, inputs.server, {name: data[name] for name in kept}
    scores |= stage("score", functools.partial(program.engine.score, *of_kept, when))
    answers, stored, changed = {}, {}, {}
    for name, (rows, layout, score_layout) in laid_out.items():
        clients, (new_states, (result, _)) = program.clients[name], trained[name]
        roster = clients.roster
        stored[name] = clients.programs.store.save(state.clients[name], new_states, roster, layout)
        if clients.programs.keeps:
            changed[name] = state.changed[name].copy()
            changed[name][rows] = state.round + 1
        ids, places = clients_of(roster, layout)
        answers[name] = Answers(
            ids=ids,
            padded_rows=padded(places, roster.most),
            in_order=roster.in_order,
            info=schedules[name].arguments.info,
            results=result,
            scores=scores[name],
            score_rows=clients_of(roster, score_layout)[1],
            idle=idle_lane_steps(roster, layout),
        )
    return state._replace(clients=stored, changed=changed), answers


def serve(
    program: Program, state: SimulationState, delivery: Delivery
) -> tuple[PyTree, ServerResult]:
    """Runs the server's step of a round, see `round.Round.serve`."""
    received, rows = delivery
    round, rows = collect(program.mesh, (np.int32(state.round), rows))
    server = program.server._replace(state=state.server)
    inputs = round, program.placed.pretrained, program.shown
    return program.engine.serve(server, (received, rows), *inputs)


def device_schedule(
    program: Program, name: str, layout: np.ndarray, inputs: RoundInputs, lost: np.ndarray
) -> Schedule:
    """Returns the sharded schedule of a layout; `lost` are the rows whose uplink is dropped."""
    clients = program.clients[name]
    slots = clients.programs.store.slots(clients.roster, layout)
    return scatter(program.mesh, schedule(clients.roster, layout, slots, inputs.info, lost))


def round_inputs(program: Program, state: SimulationState) -> RoundInputs:
    """Returns the inputs of a round or an evaluation, placed on the devices."""
    server = RunServer(state.server, program.seed, program.settings)
    return RoundInputs(
        info=clients_info(program, state),
        round=spread(program.mesh, np.int32(state.round)),
        server=spread(program.mesh, server)._replace(frozen=program.placed.frozen),
    )


def clients_info(program: Program, state: SimulationState) -> ClientInfo:
    """Returns every client's `ClientInfo` before a round, NumPy arrays [num_clients]."""
    counts = program.data.counts["train"]
    ids = np.arange(len(counts), dtype=np.int32)
    return ClientInfo(ids, counts.astype(np.int32), state.last_round.astype(np.int32))


def evaluate(
    program: Program, state: SimulationState, only: np.ndarray | None = None
) -> Evaluation:
    """Scores clients, and the server's model if it has one; the state does not change.

    Args:
      program: the parts of the simulation.
      state: the state to score; after k rounds the newest downlink is the one at the start of round
        k (from 0).
      only: ids of the clients to score; None for all. If clients that train are among them, new
        ones are in `Evaluation.new`.
    """
    ids = np.arange(program.federation.num_clients)
    if only is not None:
        ids = checked_indices("only", only, len(ids))
    inputs, layouts, scores = round_inputs(program, state), [], []
    for request in program.in_evaluation:
        layouts, of_request = _score_blocks(program, state, inputs, ids=ids, request=request)
        scores.append(of_request)
    pooled = None
    model = program.method.global_model
    if model is not None and model.bucket(program.federation) is not None:
        pooled = program.engine.score_global(
            (state.server, program.pooled), program.placed.on_server
        )
    scores, pooled = fetch((scores, pooled))
    counts, task = program.data.counts["train"], program.federation.task

    def of_group(group, of_request, pooled=None):
        scored = []
        for (roster, layout), of_block in zip(layouts, of_request):
            scored_ids, where = clients_of(roster, layout)
            chosen = group[scored_ids]
            scored.append((scored_ids[chosen], take(of_block, where[chosen])))
        return evaluation(counts, scored, pooled, task)

    groups = [group for group in (~program.new, program.new) if group[ids].any()]
    first, *new = groups or [~program.new]
    reported = of_group(first, scores[0], pooled)  # the server's model has a single state
    if new:
        reported = reported._replace(new=of_group(new[0], scores[0]))
    if len(scores) > 1:
        reported = reported._replace(trained=of_group(first, scores[1]))
    return reported


def checked_indices(name: str, values: Any, count: int, least: int = 0) -> np.ndarray:
    """Returns values as an array; ValueError unless they are `least` or more indices < `count`."""
    indices = np.asarray(values)
    whole = indices.ndim == 1 and indices.size >= least and indices.dtype.kind in "iu"
    if not whole or np.any((indices < 0) | (indices >= count)):
        raise ValueError(
            f"{name} is {short(indices.tolist())}; it must be a list of integers from 0 to "
            f"{count - 1} (np.flatnonzero(mask) converts a mask)"
        )
    return indices


def _score_blocks(
    program: Program,
    state: SimulationState,
    inputs: RoundInputs,
    *,
    ids: np.ndarray,
    request: EvaluationRequest,
) -> tuple[list[tuple[Roster, np.ndarray]], list[dict[str, Scores]]]:
    """Scores the clients `ids` in blocks of as many as a device has room for.

    Returns:
      The roster and layout of each block, and its scores.
    """
    nobody, layouts = np.zeros(0, np.int64), {}
    counts = sum(program.data.counts[split][ids] for split in program.in_evaluation[0].splits)
    # Skip clients without samples to score, unless no client has any.
    chosen = ids[counts > 0] if np.any(counts) else ids
    for name, clients in program.clients.items():
        roster = clients.roster
        rows, size = roster.rows(chosen), clients.programs.store.block(roster)
        layouts[name] = lay_out(roster, rows, size) if len(rows) else []
    all_layouts, all_scores = [], []
    for block in itertools.zip_longest(*layouts.values()):
        layouts_of, states, schedules, data = {}, {}, {}, {}
        for name, layout in zip(layouts, block):
            if layout is None:  # this bucket has fewer blocks than the others
                continue
            clients = program.clients[name]
            layouts_of[name], data[name] = (clients.roster, layout), clients.data
            states[name] = clients.programs.store.load(state.clients[name], clients.roster, layout)
            schedules[name] = device_schedule(program, name, layout, inputs, nobody)
        when = inputs.round, request
        scores = program.engine.score(states, schedules, inputs.server, data, when)
        for name, of_bucket in layouts_of.items():
            all_layouts.append(of_bucket)
            all_scores.append(scores[name])
    return all_layouts, all_scores


def read_clients(program: Program, state: SimulationState, name: str, rows: np.ndarray) -> PyTree:
    """Returns some of a bucket's client states as NumPy.

    Clients that keep nothing have the state after the newest downlink.
    """
    clients = _clients_of(program, name)
    rows = checked_indices("rows", rows, len(clients.roster.members), least=1)
    if clients.programs.keeps:
        return clients.programs.store.read(state.clients[name], clients.roster, rows)
    assert clients.programs.received is not None  # set for clients that keep nothing
    info = clients_info(program, state)
    server = program.run_server(state.server)
    data, states = program.data.buckets[name], []
    for row in rows:
        participant = participant_of(clients, info, int(row))
        received = clients.programs.received(participant, server, data, np.int32(state.round))
        states.append(fetch(received))
    return join_trees(np.stack, states)


def write_clients(
    program: Program, state: SimulationState, name: str, rows: np.ndarray, states: PyTree
) -> SimulationState:
    """Returns the state with some of a bucket's client states replaced; the old one is donated."""
    clients = _clients_of(program, name)
    rows = checked_indices("rows", rows, len(clients.roster.members), least=1)
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"write_clients has a row of {name!r} twice; each has one state")
    if clients.programs.keeps:
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(rows), *x.shape[1:]), x.dtype), state.clients[name]
        )
        with one_line(f"states of {len(rows)} clients must have the form of read_clients'"):
            chex.assert_trees_all_equal_shapes_and_dtypes(states, like)
    stored = clients.programs.store.write(state.clients[name], clients.roster, rows, states)
    changed = state.changed[name].copy()
    changed[rows] = state.round + 1
    return state._replace(
        clients=state.clients | {name: stored}, changed=state.changed | {name: changed}
    )


def _clients_of(program: Program, name: str) -> Clients:
    """Returns the clients of an architecture."""
    if name not in program.clients:
        raise ValueError(unknown("architecture", name, program.clients))
    return program.clients[name]


def participant_of(clients: Clients, info: ClientInfo, row: int) -> Participant:
    """Returns a row as a participant; `info` has leading axis [num_clients]."""
    return Participant(
        member=np.int32(row),
        info=take(info, int(clients.roster.members[row])),
        valid=np.True_,
        dropped=np.False_,
    )
