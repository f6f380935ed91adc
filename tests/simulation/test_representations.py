"""Features that a client computes of images are those that an evaluation scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.method import View
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    FEATURE_DIM,
    NUM_CLASSES,
    each_client,
    federation_data,
    identical,
    mixed_federation,
    samples,
    to_host,
)
from tests.marks import by_name
from tests.standard import method_of, simulation_of

IDS = [4, 0, 3]  # of both architectures, in no order, one without training samples


@by_name(("local", "heterofl"))
def test_every_method_has_features_of_the_same_images(name):
    sim = simulation_of(name)
    representations = sim.features(sim.init(), IDS, np.arange(21))
    assert [x.shape[0] for x in representations] == [21] * 3
    assert all(np.isfinite(x).all() for x in representations)
    assert any(x.std() > 0 for x in representations)  # a small slice's ReLUs may all be 0


@pytest.mark.parametrize("mode", ["received", "trained"])
def test_they_are_those_that_an_evaluation_scores(mode):
    """After receipt, or as training left it; the state stays."""

    def receive(bucket, client, downlink, data, ctx):
        return jax.tree.map(lambda x: 1.1 * x, client)

    method, federation = method_of("local")._replace(receive=receive), mixed_federation()
    options = SimulationOptions(scoring=Scoring(mode), devices=1)
    sim = make_simulation(method, federation, federation_data(federation), options)
    state, _ = sim.run_round(sim.init())
    before = to_host(state)
    indices = np.array([5, 0, 7])
    representations = sim.features(state, IDS, indices)
    assert identical(before, to_host(state))
    x = np.float32((samples()[0].inputs[indices] / 255 - 0.5) / 0.5)
    for i, rows in zip(IDS, representations):
        bucket = federation.buckets[federation.assignment[i]]
        client = each_client(federation, before)[i]
        if mode == "received":
            client = receive(bucket, client, (), None, None)
        expected = method.view.features(bucket, client, jnp.asarray(x), jnp.ones(3, bool))
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
        assert rows.shape == (3, FEATURE_DIM) and rows.std(0).any()


def test_each_client_may_be_shown_samples_of_its_own():
    sim = simulation_of("local")
    state, _ = sim.run_round(sim.init())
    shown = np.array([[5, 0, 7], [1, 1, 2], [9, 8, 3]])
    of_each = sim.features(state, IDS, shown)
    for place, client in enumerate(IDS):
        (alone,) = sim.features(state, [client], shown[place])
        np.testing.assert_array_equal(of_each[place], alone)
    repeated = sim.features(state, [IDS[0]] * 3, shown)
    np.testing.assert_array_equal(repeated[0], of_each[0])
    assert (repeated[1] != repeated[2]).any()
    with pytest.raises(ValueError, match=r"^no client 8; ids run from 0 to 7$"):
        sim.features(state, [8], shown[0])


def test_prototypes_lie_among_the_features():
    """Every class with samples has a prototype; nobody trains on the last class."""
    method, sim = method_of("fedproto"), simulation_of("fedproto")
    state = sim.init()
    assert not method.view.prototypes(state.server).mask.any()
    state, _ = sim.run_round(state)
    shown = method.view.prototypes(state.server)
    assert shown.values.shape == (NUM_CLASSES, FEATURE_DIM) and shown.mask[:-1].all()


def test_a_method_without_features_says_so():
    method, federation = method_of("local")._replace(view=View(features=None)), mixed_federation()
    sim = make_simulation(method, federation, federation_data(federation))
    with pytest.raises(ValueError, match="local has no features"):
        sim.features(sim.init(), IDS, np.arange(3))


@pytest.mark.parametrize("index", [-1, 10_000])
def test_samples_that_do_not_exist_have_no_features(index):
    sim = simulation_of("local")
    with pytest.raises(
        ValueError, match=rf"indices is \[{index}\]; it must be a list of integers from 0 to"
    ):
        sim.features(sim.init(), IDS, np.array([index]))


@by_name(("fedproto",))
def test_scores_of_a_client_are_those_that_an_evaluation_counts(name):
    sim, (dataset, partition) = simulation_of(name), samples()
    state = sim.init()
    accuracy = sim.evaluate(state).accuracy["test"]
    for client in IDS:
        test = partition[client].test
        for rule in sim.rules:
            scores = sim.predict(state, client, dataset.inputs[test], rule=rule)
            assert scores.shape == (len(test), NUM_CLASSES) and scores.dtype == np.float32
            has_score = np.isfinite(scores.max(-1))  # without prototypes there is none
            hits = (scores.argmax(-1) == dataset.labels[test]) & has_score
            np.testing.assert_allclose(hits.mean(), accuracy[rule][client])


def test_samples_that_no_client_can_score():
    sim, x = simulation_of("local"), samples()[0].inputs[:3]
    state = sim.init()
    faults = {
        "no client 99; ids run from 0 to": (99, x, None),
        "unknown rule 'haed'; did you mean 'head'": (0, x, "haed"),
        "inputs are float32 .*; they must be uint8 .*": (0, x / np.float32(2), None),
        r"inputs are a list; they must be uint8 \[n, ": (0, x.tolist(), None),
        r"must be uint8 \[n, .*; for one sample add an axis: inputs\[None\]$": (0, x[0], None),
        "inputs have no samples": (0, x[:0], None),
    }
    for line, (client, inputs, rule) in faults.items():
        with pytest.raises(ValueError, match=line):
            sim.predict(state, client, inputs, rule)
