"""Numbers of a method as arguments of programs: as if written down, nothing compiled anew."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.method import varied
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, federation_for

ROUNDS = 2
SCORING = Scoring(batch_size=4)
SCORING = Scoring(batch_size=4)
OPTIONS = SimulationOptions(seed=3, participation=0.6, lanes=1, devices=1, scoring=SCORING)
POINTS = {"rate": np.array([0.05, 0.2]), "weight": np.array([0.1, 2.0])}
POINTS["server_lr"] = np.array([0.01, 0.1])
POINTS["server_lr"] = np.array([0.01, 0.1])


def make(s):
    training = dataclasses.replace(TRAINING, optimizer=optax.sgd(s["rate"]))
    options = {"weight": s["weight"], "server_lr": s["server_lr"], "server_epochs": 10}
    return METHODS["fedtgp"](training, server_batch_size=3, **options)


def point(i):
    return {name: values[i] for name, values in POINTS.items()}


def played(simulation):
    state = simulation.init()
    for _ in range(ROUNDS):
        state, report = simulation.run_round(state)
    return state, report, simulation.evaluate(state)


def alike(a, b):
    """To rounding: XLA may divide by what it knows otherwise than by what it is told."""
    pairs = zip(*map(jax.tree.leaves, (a, b)))
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in pairs)


@pytest.fixture(scope="module")
def federation():
    return federation_for("fedtgp")


def test_points_are_the_runs_they_would_be_alone(federation):
    data, method = federation_data(federation), varied(make, point(0))
    points = []
    for i in range(2):
        simulation = make_simulation(method, federation, data, OPTIONS, settings=point(i))
        points.append(played(simulation))
        if i == 0:  # a program each is compiled for those alone
            continue
        state, report, score = played(make_simulation(make(point(i)), federation, data, OPTIONS))
        varied_state, varied_report, varied_score = points[i]
        assert alike(varied_state.server, state.server)
        found = varied_report.metrics, varied_report.accuracy
        assert alike(found, (report.metrics, report.accuracy))
        assert alike(varied_score.accuracy, score.accuracy)
    assert not alike(*(state.server for state, _, _ in points))


def test_other_settings_compile_nothing(federation, compiled):
    data, method = federation_data(federation), varied(make, point(0))

    def final_state(number: int, seed: int):
        options = dataclasses.replace(OPTIONS, seed=seed)
        simulation = make_simulation(method, federation, data, options, settings=point(number))
        return played(simulation)[0]

    states = [final_state(0, 3)]
    compiled.clear()
    states.append(final_state(1, 4))
    assert not compiled
    assert not alike(*(s.server for s in states))


def test_settings_must_fit(federation):
    data, method = federation_data(federation), varied(make, point(0))
    for chosen, settings, message in (
        (method, (), "fedtgp has settings that vary, but none are given; pass settings"),
        (make(point(0)), point(0), "settings are given, but fedtgp has none that vary"),
        (method, POINTS, r"settings\['rate'\] has \[2\] values; a run takes one of each"),
    ):
        with pytest.raises(ValueError, match=message):
            make_simulation(chosen, federation, data, OPTIONS, settings=settings)


def test_a_factory_may_be_called_where_a_program_is_traced():
    """FedSSA reckons with its options when it is made."""
    jax.eval_shape(lambda rate: method_factory("fedssa")(TRAINING) and rate, 0.1)
