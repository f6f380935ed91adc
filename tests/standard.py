"""A method on the standard federation (tests/federations.py): its simulation, rounds, one serve."""

import functools

import jax

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods import method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, SimulationState, make_simulation
from tests.federations import TRAINING, federation_data, federation_for, to_host
from tests.method_wires import settings


def method_of(name: str, training: LocalTraining = TRAINING, **options) -> Method:
    """The method with settings that end soon; `options` replace some."""
    return method_factory(name)(training, **settings(name) | options)


def simulation_of(name: str, *, reverse: bool = False, padding: int = 0, **options) -> Simulation:
    """The method's simulation on its federation; `options` are fields of `SimulationOptions`."""
    federation = federation_for(name, reverse)
    data = federation_data(federation, padding)
    return make_simulation(method_of(name), federation, data, SimulationOptions(**options))


def played(sim: Simulation, rounds: int) -> tuple[list[SimulationState], list]:
    """States from the initial one on, on the host, and the reports of the rounds between them."""
    state = sim.init()
    states, reports = [to_host(state)], []
    for _ in range(rounds):
        state, report = sim.run_round(state)
        states.append(to_host(state))
        reports.append(report)
    return states, reports


@functools.partial(jax.jit, static_argnums=(0, 1))
def served(method: Method, federation: Federation, server, received, ctx=None):
    """The server's next state and metrics, compiled: operations one by one take longer."""
    return method.server_update(federation, server, received, ctx)
