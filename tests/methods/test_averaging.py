"""Clients without training samples weigh nothing in any mean over clients."""

import pytest

from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, federation_for, identical, play

WITHOUT_SAMPLES = 3  # a client of `tests.federations`
MEANS = {
    "fedavg uniform": {"weighting": "uniform"},
    "fedavg samples": {"weighting": "samples"},
    "lg_fedavg uniform": {"weighting": "uniform"},
    "fedral uniform": {"weighting": "uniform"},
    "heterofl uniform": {"weighting": "uniform"},
    "fml uniform": {},
}


@pytest.mark.parametrize("mean", MEANS)
def test_a_client_without_samples_weighs_nothing(mean):
    name, _ = mean.split()
    federation = federation_for(name)
    method = METHODS[name](TRAINING, **MEANS[mean])
    simulation = make_simulation(method, federation, federation_data(federation), SimulationOptions(devices=1))
    start = simulation.init()
    beside, _ = play(simulation, start, [0, 4, WITHOUT_SAMPLES])
    alone, _ = play(simulation, start, [0, 4])
    assert identical(beside.server, alone.server)
    assert not identical(alone.server, play(simulation, start, [WITHOUT_SAMPLES])[0].server)
