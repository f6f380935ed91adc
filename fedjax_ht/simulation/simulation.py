"""A whole federation, on one device or many, ready to run."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method, PyTree
from fedjax_ht.data.client_data import FederationData, join_trials
from fedjax_ht.simulation.faults import Fault, find_fault
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.program import Program, bind, of_trials
from fedjax_ht.simulation.report import Evaluation, RoundReport
from fedjax_ht.simulation.representations import client_features
from fedjax_ht.simulation.steps import (
    SimulationState,
    evaluate,
    first_state,
    read_clients,
    run_round,
)


class Simulation(NamedTuple):
    """A federation ready to run; every function is compiled at its first call.

    Attributes:
      init: () -> SimulationState.
      run_round: (SimulationState, score=True) -> (SimulationState, RoundReport). The old state's
        buffers are donated: see `copy_state`. `score` also scores the participants as training left
        them.
      evaluate: (SimulationState, ids or None) -> Evaluation of those clients, or of all.
      read_clients: (SimulationState, bucket name, rows) -> those states as NumPy; of clients that
        keep nothing between rounds, as the next downlink leaves them.
      write_clients: (SimulationState, bucket name, rows, states) -> SimulationState with those
        states put in place.
      trials: of `make_trials`, how many run together: reports and evaluations are lists, one per
        trial; else None.
      client_flops: () -> float64 [num_clients], of `make_trials` [trials, num_clients], FLOPs of
        each client in a round that it takes part in (see `metrics.flops`); its first call traces
        every architecture once more.
      lanes: bucket name -> how many of its clients run side by side on a device.
      find_fault: (SimulationState, jit=True) -> Fault or None: where the next round first has a
        value that is not finite, or raises, played one client at a time (see `simulation.faults`);
        the state stays.
      of_trials: (seeds, settings) -> Simulation of as many trials with these, by the programs of
        this one: nothing is compiled again.
      features: (SimulationState, ids, indices) -> float32 [n, K] for each of these clients, what it
        makes of the images `indices` (see `simulation.representations`).
      rules: the method's inference rules, the reported one first.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[..., tuple[SimulationState, RoundReport | list[RoundReport]]]
    evaluate: Callable[..., Evaluation | list[Evaluation]]
    read_clients: Callable[[SimulationState, str, np.ndarray], PyTree]
    write_clients: Callable[[SimulationState, str, np.ndarray, PyTree], SimulationState]
    trials: int | None
    client_flops: Callable[[], np.ndarray]
    lanes: dict[str, int]
    find_fault: Callable[..., Fault | None]
    of_trials: Callable[..., "Simulation"]
    features: Callable[[SimulationState, Sequence[int], np.ndarray], list[np.ndarray]]
    rules: tuple[str, ...]


def make_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    options: SimulationOptions | None = None,
) -> Simulation:
    """Binds a method to a federation and its data.

    Args:
      method: a factory's result; its hyper-parameters, local training among them, are bound
        already.
      federation: the buckets.
      data: the clients' data.
      options: how the federation runs.

    Raises:
      ValueError: the method cannot run on this federation.
    """
    return _alone(make_trials(method, federation, [data], options))


def make_trials(
    method: Method,
    federation: Federation,
    data: Sequence[FederationData],
    options: SimulationOptions | None = None,
    seeds: Sequence[int] | None = None,
    settings: PyTree = (),
) -> Simulation:
    """Several trials in one program: trial t runs on data[t] with its own seed and settings, and as
    it would alone.

    Args:
      data: they hold the same images, and may be one split repeated.
      seeds: one a trial; `options.seed` and those that follow it, unless given.
      settings: of a method that is `varied`, float32 arrays with a leading axis of trials.
      Others as `make_simulation`.
    """
    options = options or SimulationOptions()
    seeds = range(options.seed, options.seed + len(data)) if seeds is None else seeds
    return _simulation(bind(method, federation, join_trials(data), options, seeds, settings))


def _simulation(program: Program) -> Simulation:
    def write_clients(
        state: SimulationState, name: str, rows: np.ndarray, states: PyTree
    ) -> SimulationState:
        own = program.clients[name]
        stored = own.store.write(state.clients[name], own.roster, rows, states)
        return state._replace(clients=state.clients | {name: stored})

    return Simulation(
        functools.partial(first_state, program),
        functools.partial(run_round, program),
        functools.partial(evaluate, program),
        functools.partial(read_clients, program),
        write_clients,
        len(program.options),
        program.flops,
        {name: own.roster.lanes for name, own in program.clients.items()},
        functools.partial(find_fault, program),
        lambda seeds, settings=(): _simulation(of_trials(program, seeds, settings)),
        functools.partial(client_features, program),
        tuple(program.method.rules),
    )


def _alone(simulation: Simulation) -> Simulation:
    """What the only trial reports, instead of lists of one."""

    def run_round(
        state: SimulationState, score: bool = True
    ) -> tuple[SimulationState, RoundReport]:
        state, (report,) = simulation.run_round(state, score)
        return state, report

    def evaluate(state: SimulationState, only: np.ndarray | None = None) -> Evaluation:
        (evaluation,) = simulation.evaluate(state, only)
        return evaluation

    return simulation._replace(
        trials=None,
        run_round=run_round,
        evaluate=evaluate,
        client_flops=lambda: simulation.client_flops()[0],
        of_trials=lambda seeds, settings=(): _alone(simulation.of_trials(seeds, settings)),
    )
