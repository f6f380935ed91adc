"""Rules that classify by a client's features alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.metrics.neighbours import neighbour_rules
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import federation_data, federation_for, to_device
from tests.reference import neighbours
from tests.standard import method_of, played, simulation_of

CLASSES, SAMPLES, WIDTH = 4, 37, 5
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES - 1, SAMPLES)  # nobody of the last class
ASKED = RNG.normal(size=(6, WIDTH)).astype(np.float32)
MASK = jnp.ones(6, bool)


def rules_of(count: int, k: int, rows=ROWS):
    indices = jnp.asarray(RNG.permutation(SAMPLES), jnp.int32)
    split = Split(indices, jnp.int32(count))
    data = Data(jnp.asarray(rows), jnp.asarray(LABELS), lambda x: x, {"train": split})
    rules = neighbour_rules(k, lambda x, mask: x, data, CLASSES)
    return rules, np.asarray(indices)[:count]


@pytest.mark.parametrize("k", [1, 7, 100])
def test_both_rules_equal_their_references(k):
    rules, own = rules_of(30, k)
    found, labels = rules(ASKED, MASK), LABELS[own]
    for at, x in enumerate(ASKED.astype(np.float64)):
        mean = neighbours.own_mean(x, ROWS[own].astype(np.float64), labels, CLASSES)
        shares = neighbours.neighbours(x, ROWS[own].astype(np.float64), labels, CLASSES, k)
        np.testing.assert_allclose(found["own_mean"][at], mean, rtol=1e-5)
        np.testing.assert_allclose(found["neighbours"][at], shares, rtol=1e-5, atol=1e-7)


def test_far_samples_still_have_weights():
    shares = np.asarray(rules_of(30, 3, rows=ROWS + 1e3)[0](ASKED, MASK)["neighbours"])
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)


def test_without_samples_nothing_is_predicted():
    for scores in rules_of(0, 3)[0](ASKED, MASK).values():
        assert np.isneginf(scores).all()


@pytest.mark.parametrize("name", ["fedproto", "fedavg"])
def test_rows_have_both_rules_beside_the_methods_own(name):
    states, _ = played(simulation_of(name), 1)
    plain, more = simulation_of(name), simulation_of(name, scoring=Scoring(neighbours=3))
    assert more.rules == (*plain.rules, "own_mean", "neighbours")
    state = to_device(states[-1])
    accuracy = more.evaluate(state).accuracy["test"]
    assert set(accuracy) == set(more.rules)
    for rule, scores in plain.evaluate(state).accuracy["test"].items():
        np.testing.assert_array_equal(accuracy[rule], scores)


def test_methods_without_features_are_refused():
    method, federation = method_of("local"), federation_for("local")
    method = method._replace(view=method.view._replace(features=None))
    options = SimulationOptions(scoring=Scoring(neighbours=3))
    with pytest.raises(ValueError, match="neighbours compares features, but local has"):
        make_simulation(method, federation, federation_data(federation), options)
