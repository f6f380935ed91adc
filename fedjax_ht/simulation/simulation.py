"""A federation ready to run: functions common to all transports, and those of a simulation only."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_ht.check.names import kind_of_value, listed_clients
from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import weights_of
from fedjax_ht.core.federation import Federation, all_weights
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.simulation.compiled import (
    compiled_round,
    evaluate,
    first_state,
    read_clients,
    write_clients,
)
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.program import Program, bind
from fedjax_ht.simulation.report import Evaluation, RoundReport
from fedjax_ht.simulation.representations import client_features, predict
from fedjax_ht.simulation.round import run_round
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.trust.options import Attack

if TYPE_CHECKING:
    from fedjax_ht.simulation.stepped import Fault


@dataclasses.dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds of a federation, simulated or deployed, as run by `history.run`.

    Attributes:
      init: () -> SimulationState.
      run_round: (SimulationState, score=True) -> (SimulationState, RoundReport). `score` also
        scores the participants after training. The old state's buffers may be donated, see
        `copy_state`.
      evaluate: (SimulationState, ids or None) -> Evaluation of those clients, or of all.
      client_flops: () -> float64 [num_clients], each client's FLOPs in a round that it takes part
        in. The first call in a simulation traces every architecture once more (see
        `metrics.flops`).
      rules: the method's inference rules, the reported one first.
      num_classes: number of classes, to compare losses with guessing; None compares none.
    """

    init: Callable[[], SimulationState]
    run_round: Callable[..., tuple[SimulationState, RoundReport]]
    evaluate: Callable[..., Evaluation]
    client_flops: Callable[[], np.ndarray]
    rules: tuple[str, ...]
    num_classes: int | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Simulation(Rounds):
    """A federation ready to run on this machine: `Rounds`, and functions to inspect its clients.

    Every function is compiled at its first call, unless this process has the programs of a
    simulation that differs only in samples, split and seed (see `simulation.engine`).

    Attributes:
      lanes: bucket name -> number of parallel clients on a device.
      read_clients: (SimulationState, bucket name, rows) -> those states as NumPy. Clients without
        state between rounds have the state after the next downlink.
      write_clients: (SimulationState, bucket name, rows, states) -> SimulationState with those
        states replaced. The old state's buffers may be donated.
      find_fault: (SimulationState, jit=True) -> Fault or None: the first non-finite value or error
        in the next round. The round runs one client at a time (see `simulation.stepped`); the state
        does not change.
      features: (SimulationState, ids, indices) -> float32 [n, K] for each of these clients, the
        features of the samples `indices`, int [n], or int [len(ids), n] per client.
      predict: (SimulationState, client id, inputs [n, ...] as the data set stores them, rule=None)
        -> float32 [n, num_classes], the client's scores by a rule (None for the reported one), in
        the state that an evaluation scores.
      program: the common parts of these functions.
    """

    lanes: dict[str, int]
    read_clients: Callable[[SimulationState, str, np.ndarray], PyTree]
    write_clients: Callable[[SimulationState, str, np.ndarray, PyTree], SimulationState]
    find_fault: Callable[..., "Fault | None"]
    features: Callable[[SimulationState, Sequence[int], np.ndarray], list[np.ndarray]]
    predict: Callable[..., np.ndarray]
    program: Program

    def __repr__(self) -> str:
        lanes = ", ".join(f"{name} in {count}" for name, count in self.lanes.items())
        seed, rules = self.program.options.seed, ", ".join(self.rules)
        return f"<Simulation with seed {seed}: lanes {lanes}; rules {rules}>"


@checked
@standard_numerics()
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
      method: a factory's result, with its hyper-parameters and local training.
      federation: the buckets.
      data: the clients' data.
      options: the options of the federation.
      settings: the numbers of a `varied` method.

    Raises:
      ValueError: the method cannot run on this federation, or the data belong to another one.
    """
    expected = {bucket.name: len(federation.members(bucket)) for bucket in federation.buckets}
    found = {name: np.size(part.splits["train"].count) for name, part in data.buckets.items()}
    if found != expected:
        raise ValueError(
            f"data have the clients {found}, but the federation has {expected}; give "
            "make_federation_data the same federation"
        )
    notes = batch_notes(federation, method, data.counts["train"])
    if options is not None:
        notes += attack_notes(options.attack, federation.num_clients)
    for note in notes:
        # stacklevel: the caller, outside the decorators
        warnings.warn(note, stacklevel=4)
    return bound_simulation(method, federation, data, options=options, settings=settings)


@standard_numerics()
def bound_simulation(
    method: Method,
    federation: Federation,
    data: FederationData,
    *,
    options: SimulationOptions | None = None,
    settings: PyTree = (),
    beside: Simulation | None = None,
) -> Simulation:
    """Binds like `make_simulation`, but without its warnings.

    Samples that the simulation `beside` has on the devices are reused.
    """
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


def simulation_of(program: Program) -> Simulation:
    """Returns the functions of a program."""
    check, federation = state_check(program), program.federation

    def of_state(function: Callable, bound: Any = program) -> Callable:
        """Returns the bound function (state, ...), which rejects states of other simulations."""

        def call(state, *args, **kwargs):
            check(state)
            return function(bound, state, *args, **kwargs)

        return standard_numerics()(call)

    return Simulation(
        init=standard_numerics()(functools.partial(first_state, program)),
        run_round=of_state(run_round, compiled_round(program)),
        evaluate=of_state(evaluate),
        client_flops=standard_numerics()(program.flops),
        rules=(*program.method.rules, *program.options.scoring.further_rules),
        num_classes=federation.num_classes if federation.task == CLASSIFICATION else None,
        lanes={name: clients.roster.lanes for name, clients in program.clients.items()},
        read_clients=of_state(read_clients),
        write_clients=of_state(write_clients),
        find_fault=of_state(_find_fault),
        features=of_state(client_features),
        predict=of_state(predict),
        program=program,
    )


REMEDY = "give a state from its own init() or run"


def _find_fault(program: Program, state: SimulationState, jit: bool = True) -> "Fault | None":
    from fedjax_ht.simulation.stepped import find_fault

    return find_fault(program, state, jit)


def state_check(program: Program) -> Callable[[Any], None]:
    """Returns (state) -> None, which raises ValueError for a state of another method or federation.

    The message is one line. The expected forms are traced at the first call.
    """
    expected = functools.cache(functools.partial(_expected_forms, program))
    name, num_clients = program.method.name, program.federation.num_clients
    options = program.options
    waits = options.devices_profile is not None and options.devices_profile.late == "arrives"

    def check(state: Any) -> None:
        if not isinstance(state, SimulationState):
            raise ValueError(
                f"state is {kind_of_value(state)}; it must be a state of simulation.init() or "
                "fl.run"
            )
        if _is_consumed(state, in_place=options.client_store == "host"):
            raise ValueError(
                "state was consumed by run_round or write_clients; use the state that it returned, "
                "or give it fl.copy_state(state)"
            )
        if len(state.last_round) != num_clients:
            raise ValueError(
                f"state has {len(state.last_round)} clients, but this simulation of {name!r} has "
                f"{num_clients}; {REMEDY}"
            )
        lacks = {
            "select": options.select is not None and state.reports is None,
            "devices_profile.late": waits and state.waiting is None,
        }
        if option := next(filter(lacks.get, lacks), ""):
            raise ValueError(
                f"state is from a simulation without {option}, which reads more of it; {REMEDY}"
            )
        if state.waiting is not None and not waits:
            raise ValueError(
                "state is from a simulation with late uploads on their way, which this one does "
                f"not deliver; {REMEDY}"
            )
        if set(state.clients) != set(program.clients):
            raise ValueError(
                f"state has the architectures {', '.join(state.clients)}, but this simulation of "
                f"{name!r} has {', '.join(program.clients)}; {REMEDY}"
            )
        server, clients = expected()
        differs = [b for b, form in clients.items() if _form(state.clients[b], 1) != form]
        if _form(state.server) != server or differs:
            part = f"a client of {differs[0]!r}" if differs else "the server"
            raise ValueError(
                f"state is from another method or federation than this simulation of {name!r}: "
                f"{part} has different arrays; {REMEDY}"
            )
        if not all(_in_place(program, name, state.clients[name]) for name in clients):
            raise ValueError(
                "state is stored for another client_store or number of devices than those of "
                f"this simulation of {name!r}; {REMEDY}, or convert it by fl.save and fl.load"
            )

    return check


def _is_consumed(state: SimulationState, in_place: bool) -> bool:
    """Returns whether a later state has a state's memory; `in_place` as in `host_store`."""
    stored = [x for x in jax.tree.leaves(state.clients) if isinstance(x, np.ndarray)]
    if in_place and not all(x.flags.writeable for x in stored):
        return True
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state))


def _expected_forms(program: Program) -> tuple[Any, dict[str, Any]]:
    """Returns the forms of the server's state, and of a client's state by bucket.

    Buckets whose clients keep no state are absent.
    """
    seed, settings = program.seed, program.settings
    weights = all_weights(program.federation)
    server = jax.eval_shape(program.engine.first_server, seed, settings, weights)
    client_ids, clients = jax.ShapeDtypeStruct((program.mesh.size,), "int32"), {}
    for bucket in program.federation.buckets:
        programs = program.clients[bucket.name].programs
        if programs.keeps:
            states = jax.eval_shape(
                programs.first_states, client_ids, seed, settings, weights_of(bucket)
            )
            clients[bucket.name] = _form(states, 1)
    return _form(server), clients


def _in_place(program: Program, bucket: str, stored: PyTree) -> bool:
    """Returns whether stored states are where this simulation's store keeps them.

    Elsewhere, rows have another order.
    """
    roster, devices = program.clients[bucket].roster, program.mesh.size
    rows = devices * roster.shard
    if program.options.client_store == "host":
        rows, devices = max(1, len(roster.local)), 0
    for x in jax.tree.leaves(stored):
        count = len(x.sharding.device_set) if isinstance(x, jax.Array) else 0
        # A single device has the rows in the order of NumPy arrays, e.g. of a pickled state.
        if len(x) != rows or not (count == devices or count < devices == 1):
            return False
    return True


def _form(tree: PyTree, skipped: int = 0) -> tuple:
    """Returns a pytree's structure and arrays' shapes and dtypes, without `skipped` first axes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(x)[skipped:], getattr(x, "dtype", None)) for x in leaves]


def smallest_batch(training: LocalTraining, num_samples: np.ndarray) -> np.ndarray:
    """Returns the number of real samples in a client's smallest batch; 0 without samples.

    Args:
      training: the recipe.
      num_samples: training samples of the clients, int [...].
    """
    size = training.batch_size
    rest = num_samples % size
    last = np.full_like(num_samples, size)
    if not training.drop_remainder:
        last = np.where(rest > 0, rest, size)
    # A client with less than one batch takes one masked step.
    return np.where(num_samples < size, num_samples, last)


def attack_notes(attack: Attack, num_clients: int) -> list[str]:
    """Returns a warning if an attack is set by which no client attacks."""
    if attack.kind is None and attack.share:
        return [f"attack.share is {attack.share:g}, but attack.kind is not set: no client attacks"]
    if attack.kind is not None and attack.share * num_clients < 0.5:
        few = f"attack.share {attack.share:g} of {num_clients} clients rounds to 0"
        return [f"attack.kind is {attack.kind}, but {few}: no client attacks"]
    return []


def batch_notes(federation: Federation, method: Method, train_counts: np.ndarray) -> list[str]:
    """Returns a warning for each architecture whose batch norms see a single value per channel.

    Their output is then their shift, whatever the sample, and no layer before them learns.

    Args:
      federation: the buckets.
      method: the method, which has the training recipes.
      train_counts: training samples, int [..., num_clients]; leading axes are several splits.
    """
    counts, notes = np.asarray(train_counts), []
    for bucket in federation.buckets:
        if not bucket.flat_norms:
            continue
        training = method.training_of(bucket.name)
        batches = smallest_batch(training, counts)
        is_alone = (batches == 1).reshape(-1, batches.shape[-1]).any(0)
        clients = [i for i in federation.members(bucket) if is_alone[i]]
        if not clients:
            continue
        remedy = "give each client at least two training samples (min_samples=3)"
        if training.batch_size == 1:
            remedy = "set batch_size to 2 or more"
        elif not training.drop_remainder:
            remedy = "drop the last, partial batch (drop_remainder=True)"
        notes.append(
            f"{listed_clients(clients)} of model {bucket.name!r} with training batches of a single "
            f"sample, which batch norm ({bucket.flat_norms[0]}) maps to a constant: "
            f"{remedy}, or use group or layer norm"
        )
    return notes
