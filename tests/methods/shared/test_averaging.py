"""Clients without training samples weigh nothing in any mean over clients.

Means that are a method's default are tested in test_contract.py, whose simulations are compiled
already.
"""

import pytest

from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    TRAINING,
    check_idle_client_weighs_nothing,
    federation_data,
    federation_for,
)


@pytest.mark.parametrize("name", ["fedavg", "lg_fedavg", "fedper", "fedral", "fedmrl", "fedprox"])
def test_a_client_without_samples_weighs_nothing_in_a_uniform_mean(name):
    federation = federation_for(name)
    method = METHODS[name](TRAINING, weighting="uniform")
    simulation = make_simulation(
        method, federation, federation_data(federation), SimulationOptions(devices=1)
    )
    check_idle_client_weighs_nothing(simulation, simulation.init())
