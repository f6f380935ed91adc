"""An evaluation: every client's accuracy, and that of the server's own model."""

import itertools

import numpy as np

from fedjax_ht.core.evaluation import EvaluationRequest
from fedjax_ht.core.mesh import fetch
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.trees import take
from fedjax_ht.simulation.compiled import RoundInputs, device_schedule, round_inputs, score_states
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.report import Evaluation, evaluation
from fedjax_ht.simulation.roster import Roster, blocks, clients_of
from fedjax_ht.simulation.state import SimulationState


def evaluate(
    program: Program, state: SimulationState, only: np.ndarray | None = None
) -> Evaluation:
    """Scores clients, and the server's model if it has one; the state stays.

    Args:
      program: the parts of the simulation.
      state: the state to score; after k rounds the newest downlink is the one that round k, from 0,
        starts with.
      only: ids of the clients to score; None for all.
    """
    ids = np.arange(program.federation.num_clients)
    if only is not None:
        ids = _client_ids(only, len(ids))
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
    evaluations = []
    for of_request in scores:
        scored = []
        for (roster, layout), of_block in zip(layouts, of_request):
            scored_ids, where = clients_of(roster, layout)
            scored.append((scored_ids, take(of_block, where)))
        evaluations.append(evaluation(program.data.counts["train"], scored, pooled))
        pooled = None  # the server's model has one state
    reported, *trained = evaluations
    return reported._replace(trained=trained[0]) if trained else reported


def _client_ids(only: np.ndarray, num_clients: int) -> np.ndarray:
    """Returns ids of clients as an array; a ValueError where there are no such clients."""
    ids = np.asarray(only)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"only has {ids.dtype} {list(ids.shape)}; it must be a list of clients' ids, integers: "
            "np.flatnonzero(mask) gives those of a mask"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < num_clients:
        raise ValueError(
            f"only has ids from {ids.min()} to {ids.max()}; they must be from 0 to "
            f"{num_clients - 1}"
        )
    return ids


def _score_blocks(
    program: Program,
    state: SimulationState,
    inputs: RoundInputs,
    *,
    ids: np.ndarray,
    request: EvaluationRequest,
) -> tuple[list[tuple[Roster, np.ndarray]], list[dict[str, Scores]]]:
    """Scores the clients `ids` as a request says, as many at a time as a device has room for.

    Returns:
      The roster and the layout of each block's clients, and their scores.
    """
    nobody = np.zeros(0, np.int64)
    chosen, layouts = _with_samples(program, ids), {}
    for name, clients in program.clients.items():
        roster = clients.roster
        layouts[name] = blocks(roster, roster.rows(chosen), clients.programs.store.block(roster))
    all_layouts, all_scores = [], []
    for block in itertools.zip_longest(*layouts.values()):
        layouts_of, states, schedules = {}, {}, {}
        for name, layout in zip(layouts, block):
            if layout is None:  # this bucket has fewer blocks than others
                continue
            clients = program.clients[name]
            layouts_of[name] = clients.roster, layout
            states[name] = clients.programs.store.load(state.clients[name], clients.roster, layout)
            schedules[name] = device_schedule(program, name, layout, inputs, nobody)
        scores = score_states(program, states, schedules, inputs, request)
        for name, of_bucket in layouts_of.items():
            all_layouts.append(of_bucket)
            all_scores.append(scores[name])
    return all_layouts, all_scores


def _with_samples(program: Program, ids: np.ndarray) -> np.ndarray:
    """Returns those of `ids` that have any sample to be scored on; all of them where none has."""
    splits = program.in_evaluation[0].splits
    counts = sum(program.data.counts[split][ids] for split in splits)
    if not np.any(counts):
        return ids
    return ids[counts > 0]
