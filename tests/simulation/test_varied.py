"""Numbers of a method as arguments of its programs: as if they were written down, and nothing
compiled for another."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.method import varied
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation, make_trials
from tests.federations import TRAINING, federation_data, federation_for

ROUNDS = 2
OPTIONS = SimulationOptions(seed=3, participation=0.6, lanes=1, devices=1, eval_batch_size=4)
POINTS = {
    "rate": np.array([0.05, 0.2]),
    "weight": np.array([0.1, 2.0]),
    "server_lr": np.array([0.01, 0.1]),
}


def make(s):
    training = dataclasses.replace(TRAINING, optimizer=optax.sgd(s["rate"]))
    return METHODS["fedtgp"](
        training,
        weight=s["weight"],
        server_lr=s["server_lr"],
        server_batch_size=3,
        server_epochs=10,
    )


def point(i):
    return {name: values[i] for name, values in POINTS.items()}


def played(simulation):
    state = simulation.init()
    for _ in range(ROUNDS):
        state, report = simulation.run_round(state)
    return state, report, simulation.evaluate(state)


def alike(a, b):
    """To rounding: XLA may divide by what it knows otherwise than by what it is told."""
    return all(
        np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
        for x, y in zip(*map(jax.tree.leaves, (a, b)))
    )


@pytest.fixture(scope="module")
def federation():
    return federation_for("fedtgp")


def test_points_are_the_runs_they_would_be_alone(federation):
    data, method = federation_data(federation), varied(make, point(0))
    together, reports, scores = played(
        make_trials(method, federation, [data, data], OPTIONS, seeds=[3, 3], settings=POINTS)
    )
    assert not alike(*(jax.tree.map(lambda x, i=i: x[i], together.servers) for i in range(2)))
    for i in range(2):
        state, report, score = played(make_simulation(make(point(i)), federation, data, OPTIONS))
        assert alike(jax.tree.map(lambda x, i=i: x[i], together.servers), state.server)
        assert alike((reports[i].metrics, reports[i].accuracy), (report.metrics, report.accuracy))
        assert alike(scores[i].accuracy, score.accuracy)


def test_other_settings_compile_nothing(federation, compiled):
    data, method = federation_data(federation), varied(make, point(0))

    def final_state(place: slice, seed: int):
        settings = {name: values[place] for name, values in POINTS.items()}
        trials = make_trials(method, federation, [data], OPTIONS, [seed], settings)
        return played(trials)[0]

    states = [final_state(slice(1), 3)]
    assert compiled
    compiled.clear()
    states.append(final_state(slice(1, None), 4))
    assert not compiled
    assert not alike(*(s.servers for s in states))


def test_settings_and_trials_must_fit(federation):
    data, method = federation_data(federation), varied(make, point(0))
    for chosen, settings in (
        (method, ()),
        (make(point(0)), POINTS),
        (method, {k: v[:1] for k, v in POINTS.items()}),
    ):
        with pytest.raises(ValueError):
            make_trials(chosen, federation, [data, data], OPTIONS, settings=settings)


def test_a_factory_may_be_called_where_a_program_is_traced():
    """FedSSA reckons with its options when it is made."""
    jax.eval_shape(lambda rate: method_factory("fedssa")(TRAINING) and rate, 0.1)
