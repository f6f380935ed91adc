"""The transport of a simulation: buckets of clients in compiled programs on a mesh of devices."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.bucket import weights_of
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.evaluation import EvaluationRequest, Scores
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import collect, fetch, scatter, share, spread
from fedjax_ht.core.names import unknown
from fedjax_ht.core.round import Participant, TrialServers
from fedjax_ht.core.trees import PyTree, join_trees, take
from fedjax_ht.simulation.program import Clients, Program
from fedjax_ht.simulation.roster import PADDING, by_trial, idle_lane_steps, lay_out, schedule
from fedjax_ht.simulation.round import Cohort, Round, draw_cohorts
from fedjax_ht.simulation.serving import serve
from fedjax_ht.simulation.spending import epsilons
from fedjax_ht.simulation.stages import Seconds, stage
from fedjax_ht.simulation.state import SimulationState, clients_info
from fedjax_ht.simulation.uploads import Answers, nobody_waits
from fedjax_ht.trust.attacks import attackers


class RoundInputs(NamedTuple):
    """Inputs of a round or an evaluation.

    Attributes:
      info: the knowledge of every client, NumPy with leading axes [trials, num_clients].
      round: the round's number from 0, int32 scalar, on all devices.
      servers: the servers of all trials, on all devices.
    """

    info: ClientInfo
    round: jax.Array
    servers: TrialServers


class BucketPlan(NamedTuple):
    """A bucket's participants before they train.

    Attributes:
      rows: each trial's participants as rows of the bucket, int [...].
      layout: the participants' rows in the order in which they run, `PADDING` elsewhere, int64 [P].
      participants, scored: `roster.by_trial` of the two layouts.
      states: the clients' states on the devices; the schedules name slots in them.
      schedule: the schedule of the participants' training, on the devices.
      score_schedule: the schedule of the clients that are scored, on the devices.
    """

    rows: list[np.ndarray]
    layout: np.ndarray
    participants: tuple[np.ndarray, np.ndarray]
    scored: tuple[np.ndarray, np.ndarray]
    states: PyTree
    schedule: Schedule
    score_schedule: Schedule


def first_state(program: Program) -> SimulationState:
    """Returns the state before the first round."""
    weights = {b.name: share(program.mesh, weights_of(b)) for b in program.federation.buckets}

    def first_states(name: str, clients: Clients, layout: np.ndarray) -> PyTree:
        trials, ids = clients.roster.client(np.where(layout == PADDING, 0, layout))
        # With shared_init the bucket's first client stands for all of them.
        if program.options[0].shared_init:
            ids = np.full_like(ids, clients.roster.members[0])
        inputs = (program.seeds[trials], ids.astype(np.int32), take(program.settings, trials))
        return clients.programs.first_states(scatter(program.mesh, inputs), weights[name])

    stored, changed = {}, {}
    for name, clients in program.clients.items():
        make = functools.partial(first_states, name, clients)
        stored[name] = clients.programs.store.init(clients.roster, make)
        if clients.programs.keeps:
            changed[name] = np.zeros(len(clients.roster.steps), np.int32)
    all_models = collect(program.mesh, all_weights(program.federation))
    server = program.server
    state = SimulationState(
        round=0,
        servers=collect(
            program.mesh, program.engine.first_server((server.seeds, server.settings), all_models)
        ),
        clients=stored,
        last_round=np.full(program.train_counts.shape, -1, np.int32),
        changed=changed,
    )
    profile = program.options[0].profile
    if profile is None or profile.late == "lost":
        return state
    # The forms of uplinks: this traces every architecture's round.
    infos = clients_info(program.train_counts, state)
    return state._replace(
        waiting=nobody_waits(program.devices, program.engine.uplink_forms(), infos)
    )


def compiled_round(program: Program) -> Round:
    """Returns the round of a simulation."""
    return Round(
        options=program.options,
        exchange=functools.partial(exchange, program),
        serve=functools.partial(serve, program.server, program.mesh),
        devices=program.devices,
        attackers=attackers(program.options[0].attack, program.federation.num_clients),
        epsilons=functools.partial(epsilons, program),
        public_bytes=program.public_bytes,
        frozen_bytes=program.frozen_bytes,
    )


def exchange(
    program: Program, state: SimulationState, score: bool, seconds: Seconds | None
) -> tuple[SimulationState, dict[str, Answers]]:
    """Trains a round's participants and returns their answers; the buffers of client states are
    donated. Arguments and results as of `round.Round.exchange`."""
    cohorts = draw_cohorts(program.options, program.federation.num_clients, state)
    inputs = round_inputs(program, state)
    plans, states, schedules, data = {}, {}, {}, {}
    for name, clients in program.clients.items():
        plans[name] = _plan(program, name, state, inputs, cohorts)
        states[name], schedules[name] = plans[name].states, plans[name].schedule
        data[name] = clients.data
    request = program.after_training if score else program.nothing
    when = (inputs.round, request)
    train = functools.partial(program.engine.train, states, schedules, inputs.servers, data, when)
    trained = stage(seconds, "train", train)
    kept, score_schedules, scores = {}, {}, {}
    for name, (new_states, (_, of_bucket)) in trained.items():
        # Clients that keep nothing are scored where they train, before their models are gone.
        scores[name] = of_bucket
        if program.clients[name].programs.keeps:
            kept[name], score_schedules[name] = new_states, plans[name].score_schedule
    rescore = functools.partial(score_states, program, kept, score_schedules, inputs, request)
    scores |= stage(seconds, "score", rescore)
    answers, stored, changed = {}, {}, {}
    for name, plan in plans.items():
        clients, (new_states, (result, _)) = program.clients[name], trained[name]
        stored[name] = clients.programs.store.save(
            state.clients[name], new_states, clients.roster, plan.layout
        )
        if clients.programs.keeps:
            changed[name] = state.changed[name].copy()
            changed[name][np.concatenate(plan.rows)] = state.round + 1
        (ids, rows), (_, score_rows) = plan.participants, plan.scored
        answers[name] = Answers(
            ids=ids,
            rows=rows,
            in_order=clients.roster.in_order,
            info=plan.schedule.arguments.info,
            results=result,
            scores=scores[name],
            score_rows=score_rows,
            idle=idle_lane_steps(clients.roster, plan.layout),
        )
    return state._replace(clients=stored, changed=changed), answers


def _plan(
    program: Program,
    name: str,
    state: SimulationState,
    inputs: RoundInputs,
    cohorts: list[Cohort],
) -> BucketPlan:
    clients = program.clients[name]
    roster, store = clients.roster, clients.programs.store
    rows, dropped = [], []
    for trial, cohort in enumerate(cohorts):
        rows.append(roster.rows(trial, cohort.ids))
        dropped.append(roster.rows(trial, cohort.ids[cohort.dropped]))
    layout = score_layout = lay_out(roster, np.concatenate(rows), roster.capacity)
    if clients.programs.keeps:
        # Padded as for an evaluation, which is then the same program.
        score_layout = lay_out(roster, np.concatenate(rows), store.block(roster))
    states = store.load(state.clients[name], roster, layout)
    lost = np.concatenate(dropped)
    participants = program.options[0].participants(program.federation.num_clients)
    size = min(participants, len(roster.members))
    return BucketPlan(
        rows=rows,
        layout=layout,
        participants=by_trial(roster, layout, len(rows), size),
        scored=by_trial(roster, score_layout, len(rows), size),
        states=states,
        schedule=device_schedule(program, name, layout, inputs, lost),
        score_schedule=device_schedule(program, name, score_layout, inputs, lost),
    )


def device_schedule(
    program: Program, name: str, layout: np.ndarray, inputs: RoundInputs, lost: np.ndarray
) -> Schedule:
    """Returns the schedule of a layout, sharded; `lost` are the rows whose uplink is dropped."""
    clients = program.clients[name]
    slots = clients.programs.store.slots(clients.roster, layout)
    return scatter(program.mesh, schedule(clients.roster, layout, slots, inputs.info, lost))


def score_states(
    program: Program,
    states: dict[str, PyTree],
    schedules: dict[str, Schedule],
    inputs: RoundInputs,
    request: EvaluationRequest,
) -> dict[str, dict[str, Scores]]:
    """Scores the scheduled clients of some buckets."""
    data = {name: program.clients[name].data for name in states}
    return program.engine.score(states, schedules, inputs.servers, data, (inputs.round, request))


def round_inputs(program: Program, state: SimulationState) -> RoundInputs:
    """Puts the inputs of a round or an evaluation on the devices."""
    servers = TrialServers(state.servers, program.seeds, program.settings)
    return RoundInputs(
        info=clients_info(program.train_counts, state),
        round=spread(program.mesh, np.int32(state.round)),
        servers=spread(program.mesh, servers)._replace(frozen=program.frozen),
    )


def read_clients(program: Program, state: SimulationState, name: str, rows: np.ndarray) -> PyTree:
    """Returns some of a bucket's states as NumPy; of clients that keep nothing, as the newest
    downlink leaves them."""
    clients = _clients_of(program, name)
    if clients.programs.keeps:
        return clients.programs.store.read(state.clients[name], clients.roster, rows)
    assert clients.programs.received is not None  # as of clients that keep nothing
    info = clients_info(program.train_counts, state)
    servers = program.trial_servers(state.servers)
    data, states = program.data.buckets[name], []
    for row in rows:
        participant = participant_of(clients, info, int(row))
        received = clients.programs.received(participant, servers, data, np.int32(state.round))
        states.append(fetch(received))
    return join_trees(np.stack, states)


def write_clients(
    program: Program, state: SimulationState, name: str, rows: np.ndarray, states: PyTree
) -> SimulationState:
    """Returns the state with some of a bucket's clients' states put in place."""
    clients = _clients_of(program, name)
    stored = clients.programs.store.write(state.clients[name], clients.roster, rows, states)
    return state._replace(clients=state.clients | {name: stored})


def _clients_of(program: Program, name: str) -> Clients:
    """Returns the clients of an architecture."""
    if name not in program.clients:
        raise ValueError(unknown("architecture", name, program.clients))
    return program.clients[name]


def participant_of(clients: Clients, info: ClientInfo, row: int) -> Participant:
    """Returns one row as a participant; `info` has leading axes [trials, num_clients]."""
    trial, client = map(int, clients.roster.client(np.array(row)))
    return Participant(
        member=np.int32(row),
        trial=np.int32(trial),
        info=take(info, (trial, client)),
        valid=np.True_,
        dropped=np.False_,
    )
