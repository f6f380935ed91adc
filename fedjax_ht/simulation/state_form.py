"""A check that a state belongs to the simulation that it is given to."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.bucket import weights_of
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.names import kind_of_value
from fedjax_ht.core.trees import PyTree
from fedjax_ht.simulation.program import Clients, Program
from fedjax_ht.simulation.state import SimulationState

REMEDY = "give a state that its own init() or run made"


def state_check(program: Program) -> Callable[[Any], None]:
    """Returns (state) -> None, which raises a ValueError of one line where a state is of another
    method or federation. What it compares with is traced at its first call."""
    expected = functools.cache(functools.partial(_expected_forms, program))
    name = program.method.name

    def check(state: Any) -> None:
        if not isinstance(state, SimulationState):
            raise ValueError(
                f"state is {kind_of_value(state)}; it must be a state of simulation.init() or "
                "fl.run"
            )
        num_clients = program.federation.num_clients
        if len(state.last_round) != num_clients:
            raise ValueError(
                f"state is of {len(state.last_round)} clients, and this simulation of {name!r} has "
                f"{num_clients}; {REMEDY}"
            )
        if set(state.clients) != set(program.clients):
            raise ValueError(
                f"state has the architectures {', '.join(state.clients)}, and this simulation of "
                f"{name!r} {', '.join(program.clients)}; {REMEDY}"
            )
        server, clients = expected()
        differs = [b for b, form in clients.items() if _rows(state.clients[b]) != form]
        if _form(state.server) != server or differs:
            part = f"a client of {differs[0]!r}" if differs else "the server"
            raise ValueError(
                f"state is of another method or federation than this simulation of {name!r}: "
                f"{part} has other arrays; {REMEDY}"
            )

    return check


def _expected_forms(program: Program) -> tuple[Any, dict[str, Any]]:
    """Returns the form of the server's state, and by bucket that of a client's state, of clients
    that keep one."""
    weights = all_weights(program.federation)
    server = jax.eval_shape(program.engine.first_server, program.seed, program.settings, weights)
    clients = {}
    for bucket in program.federation.buckets:
        of_bucket = program.clients[bucket.name]
        if of_bucket.programs.keeps:
            clients[bucket.name] = _rows(_first_states(program, of_bucket, weights_of(bucket)))
    return _form(server), clients


def _first_states(program: Program, clients: Clients, weights: PyTree) -> PyTree:
    """Returns the form of as many first states as there are devices."""
    client_ids = jax.ShapeDtypeStruct((program.mesh.size,), "int32")
    return jax.eval_shape(
        clients.programs.first_states, client_ids, program.seed, program.settings, weights
    )


def _form(tree: PyTree) -> tuple:
    """Returns the structure of a pytree with the shape and dtype of each array."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(x), getattr(x, "dtype", None)) for x in leaves]


def _rows(tree: PyTree) -> tuple:
    """Returns the form of a state of arrays [rows, ...], without the rows."""
    structure, arrays = _form(tree)
    return structure, [(shape[1:], dtype) for shape, dtype in arrays]
