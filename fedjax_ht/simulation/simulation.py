"""A federation ready to run: the functions of every transport, and those of a simulation alone."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.simulation.compiled import compiled_round, first_state, read_clients, write_clients
from fedjax_ht.simulation.notes import batch_notes
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.program import Program, bind
from fedjax_ht.simulation.report import Evaluation, RoundReport
from fedjax_ht.simulation.representations import Predictor, client_features
from fedjax_ht.simulation.round import run_round
from fedjax_ht.simulation.scoring import evaluate
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.state_form import state_check
from fedjax_ht.simulation.stepped import Fault, find_fault


class Rounds(NamedTuple):
    """Rounds of a federation, wherever its clients are: what `history.run` runs.

    Attributes:
      init: () -> SimulationState.
      run_round: (SimulationState, score=True) -> (SimulationState, RoundReport). `score` also
        scores the participants as training left them.
      evaluate: (SimulationState, ids or None) -> Evaluation of those clients, or of all.
      client_flops: () -> float64 [num_clients], FLOPs of each client in a round that it takes part
        in.
      rules: the method's inference rules, the reported one first.
      num_classes: number of the task's classes, by which losses are compared with guessing; None
        compares none.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[..., tuple[SimulationState, RoundReport]]
    evaluate: Callable[..., Evaluation]
    client_flops: Callable[[], np.ndarray]
    rules: tuple[str, ...]
    num_classes: int | None = None


class Simulation(NamedTuple):
    """A federation ready to run on this machine: `Rounds`, and ways to look into its clients.

    Every function is compiled at its first call, unless this process has the programs of a
    simulation that differs in nothing but its samples, their split and the seed (see
    `simulation.engine`).

    Attributes:
      init, run_round, evaluate, client_flops, rules, num_classes: the fields of `Rounds`.
        `run_round` donates the old state's buffers, see `copy_state`; the first call of
        `client_flops` traces every architecture once more (see `metrics.flops`).
      lanes: bucket name -> number of its clients that run side by side on a device.
      read_clients: (SimulationState, bucket name, rows) -> those states as NumPy; of clients that
        keep nothing between rounds, as the next downlink leaves them.
      write_clients: (SimulationState, bucket name, rows, states) -> SimulationState with those
        states put in place.
      find_fault: (SimulationState, jit=True) -> Fault or None: where the next round first has a
        value that is not finite, or raises, played one client at a time (see
        `simulation.stepped`); the state stays.
      features: (SimulationState, ids, indices) -> float32 [n, K] for each of these clients, what it
        makes of the samples `indices`, int [n], or int [len(ids), n], samples of each client.
      predict: (SimulationState, client id, inputs [n, ...] as the data set stores them, rule=None)
        -> float32 [n, num_classes], the client's scores by that rule, None for the reported one,
        as an evaluation scores it.
      program: the parts that these functions share.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[..., tuple[SimulationState, RoundReport]]
    evaluate: Callable[..., Evaluation]
    client_flops: Callable[[], np.ndarray]
    rules: tuple[str, ...]
    num_classes: int | None
    lanes: dict[str, int]
    read_clients: Callable[[SimulationState, str, np.ndarray], PyTree]
    write_clients: Callable[[SimulationState, str, np.ndarray, PyTree], SimulationState]
    find_fault: Callable[..., Fault | None]
    features: Callable[[SimulationState, Sequence[int], np.ndarray], list[np.ndarray]]
    predict: Callable[..., np.ndarray]
    program: Program

    def __repr__(self) -> str:
        lanes = ", ".join(f"{name} in {count}" for name, count in self.lanes.items())
        seed, rules = self.program.options.seed, ", ".join(self.rules)
        return f"<Simulation with seed {seed}: lanes {lanes}; rules {rules}>"


@checked
@with_standard_numerics
def make_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    options: SimulationOptions | None = None,
    *,
    settings: PyTree = (),
) -> Simulation:
    """Binds a method to a federation and its data.

    Args:
      method: a factory's result; its hyper-parameters, local training among them, are bound
        already.
      federation: the buckets.
      data: the clients' data.
      options: the options of the federation.
      settings: the values of a method that is `varied`, numbers.

    Raises:
      ValueError: the method cannot run on this federation.
    """
    _warn(method, federation, data)
    return bound_simulation(method, federation, data, options=options, settings=settings)


@with_standard_numerics
def bound_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    *,
    options: SimulationOptions | None = None,
    settings: PyTree = (),
    beside: Simulation | None = None,
) -> Simulation:
    """Binds as `make_simulation` does, without its warnings. Samples that the simulation `beside`
    has on the devices are taken from there."""
    return simulation_of(
        bind(
            method,
            federation,
            data,
            options=options or SimulationOptions(),
            settings=settings,
            beside=beside.program.placed if beside is not None else None,
        )
    )


def _warn(method: Method, federation: Federation, data: FederationData) -> None:
    """Warns of the `batch_notes`, at the caller of a public function."""
    for note in batch_notes(federation, method, data.counts["train"]):
        # behind the function, its numerics and the check of its arguments
        warnings.warn(note, stacklevel=5)


def simulation_of(program: Program) -> Simulation:
    """Returns the functions of a program."""
    check = state_check(program)

    def of_state(function: Callable, bound: Any = program) -> Callable:
        """Returns the bound function (state, ...), which refuses a state of another simulation."""

        def call(state, *args, **kwargs):
            check(state)
            return function(bound, state, *args, **kwargs)

        return with_standard_numerics(call)

    return Simulation(
        init=with_standard_numerics(functools.partial(first_state, program)),
        run_round=of_state(run_round, compiled_round(program)),
        evaluate=of_state(evaluate),
        client_flops=with_standard_numerics(program.flops),
        rules=tuple(program.method.rules),
        num_classes=program.federation.num_classes,
        lanes={name: clients.roster.lanes for name, clients in program.clients.items()},
        read_clients=of_state(read_clients),
        write_clients=of_state(write_clients),
        find_fault=of_state(find_fault),
        features=of_state(client_features),
        predict=of_state(Predictor.predict, Predictor(program)),
        program=program,
    )
