"""Runs side by side are the runs they would be alone, to rounding: their programs are vmapped."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.scoring_options import Scoring
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.history import merged, run_together
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.runs import one_after_another, run_each
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.simulation.together import side_by_side
from tests.federations import (
    NUM_CLIENTS,
    TRAINING,
    federation_data,
    federation_for,
    identical,
    mixed_federation,
    to_host,
)
from tests.method_wires import settings

LATE = Profile(up=np.linspace(80, 320, NUM_CLIENTS), deadline=9.0, late="arrives")
OPTIONS = SimulationOptions(
    seed=3, participation=0.6, drop_rate=0.2, lanes=1, devices=1, scoring=Scoring(batch_size=4)
)


def simulations(name: str, options: SimulationOptions) -> list:
    """Returns two seeds of a method."""
    federation, method = federation_for(name), method_factory(name)(TRAINING, **settings(name))
    made = []
    for seed in (3, 4):
        of_seed = dataclasses.replace(options, seed=seed)
        made.append(make_simulation(method, federation, federation_data(federation), of_seed))
    return made


def played(runs, each):
    """States after two rounds, and the rows of the runs."""
    return run_each(
        runs,
        2,
        [None] * len(runs),
        histories=[()] * len(runs),
        each=each,
    )


def assert_alike(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


@pytest.mark.parametrize(
    "name",
    ["fedproto", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedtgp", "heterofl"))],
)
def test_runs_side_by_side_are_those_alone(name):
    """With clients that keep a state and without, and with uploads that arrive late."""
    profile = LATE if name == "fedproto" else None
    runs = simulations(name, dataclasses.replace(OPTIONS, devices_profile=profile))
    assert side_by_side(runs) is not one_after_another
    states, histories = played(runs, side_by_side(runs))
    expected, rows = played(runs, one_after_another)
    assert not np.array_equal(*(state.last_round for state in states))
    for state, other in zip(states, expected):
        assert_alike(state.server, other.server)
        assert_alike(state.clients, other.clients)
        np.testing.assert_array_equal(state.last_round, other.last_round)
    for row, other in zip(merged(histories), merged(rows)):
        assert row.keys() == other.keys()
        for key in ("participants", "arrived", "uplink_payload_bytes", "trial", "round"):
            assert row.get(key) == other.get(key)
        assert row.get("loss", 0.0) == pytest.approx(other.get("loss", 0.0), rel=1e-4)


def test_a_run_that_fails_ends_all():
    runs = simulations("fedproto", OPTIONS)
    each = side_by_side(runs)

    def fails(simulation, state):
        if simulation.program.options.seed == 4:
            raise ValueError("seed 4")
        return simulation.run_round(state)

    with pytest.raises(ValueError, match="seed 4"):
        each(fails, runs, [run.init() for run in runs])


def test_a_run_among_others_on_cpu_is_the_run_alone_bit_for_bit():
    runs = simulations("fedproto", OPTIONS)
    states, histories = run_together(runs, 2)
    for number, simulation in enumerate(runs):
        state, history = fl.run(simulation, 2)
        assert identical(to_host(state).clients, to_host(states[number]).clients)
        assert identical(to_host(state).server, to_host(states[number]).server)
        assert [row["accuracy"] for row in history] == [
            row["accuracy"] for row in histories[number]
        ]


def test_runs_of_other_methods_or_with_states_on_the_host_go_one_after_another():
    federation = mixed_federation()
    data = federation_data(federation)
    made = [make_simulation(METHODS[m](TRAINING), federation, data) for m in ("local", "fedproto")]
    assert side_by_side(made) is side_by_side(made[:1]) is one_after_another
    on_host = SimulationOptions(client_store="host")
    stored = [make_simulation(METHODS["local"](TRAINING), federation, data, on_host)] * 2
    assert side_by_side(stored) is one_after_another
