"""Numbers of a method as arguments of programs: as if written down, nothing compiled anew."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from tests.federations import TRAINING, federation_data, federation_for

ROUNDS = 2
SCORING = fl.Scoring(batch_size=4)
OPTIONS = fl.SimulationOptions(seed=3, participation=0.6, lanes=1, devices=1, scoring=SCORING)
POINTS = {"rate": np.array([0.05, 0.2]), "weight": np.array([0.1, 2.0])}
POINTS["server_lr"] = np.array([0.01, 0.1])
FEDERATION = federation_for("fedtgp")
DATA = federation_data(FEDERATION)


def make(s):
    training = dataclasses.replace(TRAINING, optimizer=optax.sgd(s["rate"]))
    options = {"weight": s["weight"], "server_lr": s["server_lr"], "server_epochs": 10}
    return fl.fedtgp(training, server_batch_size=3, **options)


def point(i):
    return {name: values[i] for name, values in POINTS.items()}


METHOD = fl.varied(make, point(0))


def played(simulation):
    state = simulation.init()
    for _ in range(ROUNDS):
        state, report = simulation.run_round(state)
    return state, report, simulation.evaluate(state)


def alike(a, b):
    """To rounding: XLA may divide by what it knows otherwise than by what it is told."""
    pairs = zip(*map(jax.tree.leaves, (a, b)))
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in pairs)


def at_point(i: int, seed: int = 3):
    options = dataclasses.replace(OPTIONS, seed=seed)
    return played(fl.make_simulation(METHOD, FEDERATION, DATA, options, settings=point(i)))


def test_points_are_the_runs_they_would_be_alone(compiled):
    """And the second point compiles nothing, nor does another seed."""
    first, _, _ = at_point(0)
    compiled.clear()
    state, report, score = at_point(1)
    other_seed, _, _ = at_point(1, seed=4)
    assert not compiled
    assert not alike(first.server, state.server) and not alike(other_seed.server, state.server)
    by_itself = fl.make_simulation(make(point(1)), FEDERATION, DATA, OPTIONS)
    alone, alone_report, alone_score = played(by_itself)
    assert alike(state.server, alone.server) and alike(score.accuracy, alone_score.accuracy)
    assert alike(report.metrics, alone_report.metrics)
    assert alike(report.accuracy, alone_report.accuracy)


def test_settings_must_fit():
    for chosen, settings, message in (
        (METHOD, (), "fedtgp has settings that vary, but none are given; pass settings"),
        (make(point(0)), point(0), "settings are given, but fedtgp has none that vary"),
        (METHOD, POINTS, r"settings\['rate'\] has \[2\] values; a run takes one of each"),
    ):
        with pytest.raises(ValueError, match=message):
            fl.make_simulation(chosen, FEDERATION, DATA, OPTIONS, settings=settings)
