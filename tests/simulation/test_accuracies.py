"""Accuracies of clients and participants, by the probe, whose predictions are known in advance."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.rows import evaluation_row
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    NUM_CLIENTS,
    TEST_COUNTS,
    TRAIN_COUNTS,
    chosen,
    federation_data,
    identical,
    samples,
    to_host,
)
from tests.reference import auc
from tests.simulation.probe import FEDERATION, capped_accuracy, capped_scores, probe, simulation
from tests.standard import simulation_of


@pytest.mark.parametrize(
    ("scoring", "options"),
    [
        (Scoring("received", batch_size=2), {"lanes": 3}),
        (Scoring("trained"), {"client_store": "host", "participation": 0.25, "lanes": 2}),
    ],
)
def test_accuracy_of_every_client(scoring, options):
    """After one round the level is 2; participants were trained to 1 + 2, others are at 0."""
    sim = simulation(scoring=scoring, **options)
    with chosen([1, 4]):
        state, report = sim.run_round(sim.init())
    before = to_host(state)
    scored = sim.evaluate(state)
    tests = [client.test for client in samples()[1]]
    trained = [3 if i in (1, 4) else 0 for i in range(NUM_CLIENTS)]
    caps = [2] * NUM_CLIENTS if scoring.state == "received" else trained
    expected = list(map(capped_accuracy, caps, tests))
    assert set(scored.accuracy) == {"test"} and set(scored.accuracy["test"]) == {"cap"}
    np.testing.assert_allclose(scored.accuracy["test"]["cap"], expected)
    np.testing.assert_array_equal(scored.counts["test"], TEST_COUNTS)
    assert scored.global_accuracy == {}
    assert identical(before, to_host(state))
    # participants are scored before receipt, which would set the cap to 2
    np.testing.assert_array_equal(report.participants, [1, 4])
    left = [capped_accuracy(3, tests[i]) for i in (1, 4)]
    np.testing.assert_allclose(report.accuracy["cap"], left)


def test_both_states_are_those_of_two_runs():
    """A run that scores both states has the reports of a run that scores each."""
    rows = {}
    for which in ("received", "trained", "both"):
        sim = simulation(scoring=Scoring(which), client_store="host", lanes=2)
        with chosen([1, 4]):
            state, _ = sim.run_round(sim.init())
        rows[which] = evaluation_row(sim.evaluate(state), ("cap",))
    assert rows["received"]["clients"] != rows["trained"]["clients"]
    trained = {f"trained_{name}": value for name, value in rows["trained"].items()}
    assert rows["both"] == rows["received"] | trained


def test_scoring_both_states_changes_no_run():
    """FedProx's clients keep nothing between rounds, unless what training left is scored."""
    scores = {}
    for which in ("received", "both"):
        sim = simulation_of("fedprox", scoring=Scoring(which), devices=1)
        state, _ = sim.run_round(sim.init())
        state, report = sim.run_round(state)
        scores[which] = sim.evaluate(state)
        trained = report.accuracy["head"]
    received, both = (scores[which].accuracy["test"]["head"] for which in ("received", "both"))
    np.testing.assert_array_equal(both, received)
    np.testing.assert_array_equal(scores["both"].trained.accuracy["test"]["head"], trained)


def test_validation_samples_are_scored_where_there_are_any():
    data = federation_data(FEDERATION)
    buckets = {
        name: bucket._replace(splits=bucket.splits | {"val": bucket.splits["train"]})
        for name, bucket in data.buckets.items()
    }
    data = data._replace(buckets=buckets, counts=data.counts | {"val": data.counts["train"]})
    sim = make_simulation(probe(), FEDERATION, data)
    scored = sim.evaluate(sim.init())
    expected = [capped_accuracy(1, split.train) for split in samples()[1]]
    np.testing.assert_allclose(scored.accuracy["val"]["cap"], expected)
    np.testing.assert_array_equal(scored.counts["val"], TRAIN_COUNTS.sum(1))
    assert set(scored.accuracy) == {"test", "val"}


def test_training_samples_are_scored_where_asked():
    sim = simulation(scoring=Scoring(train=True))
    state = sim.init()
    everybody, some = sim.evaluate(state), sim.evaluate(state, np.array([0, 3, 5]))
    train = everybody.accuracy["train"]["cap"]
    np.testing.assert_array_equal(np.isnan(train), TRAIN_COUNTS.sum(1) == 0)
    row = evaluation_row(everybody, ("cap",))
    # of all test samples of a class, whose shares make that of all samples
    counted = everybody.by_class.sum(0)
    by_class = np.array(row["class_accuracy"], float)
    assert np.nansum(by_class * counted[0]) / counted[0].sum() == row["accuracy_weighted"]
    for of_client, (counts, _, correct) in zip(row["client_class_counts"], everybody.by_class):
        assert sorted(map(int, of_client)) == list(np.flatnonzero(counts))
        assert all(pair == [counts[int(c)], correct[int(c)]] for c, pair in of_client.items())
    assert 0 < row["macro_f1"] <= 1 and counted[1].sum() == counted[0].sum()
    assert row["train_accuracy"] == pytest.approx(np.nanmean(train))
    expected = pytest.approx(np.nansum(train * TRAIN_COUNTS.sum(1)) / TRAIN_COUNTS.sum())
    assert row["train_accuracy_weighted"] == expected
    of_some = evaluation_row(some, ("cap",), np.array([0, 3, 5]))
    assert of_some["client_class_counts"] == [row["client_class_counts"][i] for i in (0, 3, 5)]
    # client 3 has no sample to train on
    assert of_some["train_accuracy"] == pytest.approx(np.mean(train[[0, 5]]))
    assert set(simulation().evaluate(state).accuracy) == {"test"}


def test_the_auc_of_every_client_is_computed_where_asked():
    """Scores are those that predictions are chosen by; one client's test samples are of one class."""
    dataset, split = samples()
    plain = simulation()
    sim = simulation(scoring=Scoring(auc=True, batch_size=2), lanes=2)
    state = sim.init()
    scored, without = sim.evaluate(state), plain.evaluate(plain.init())
    want = []
    for client in split:
        scores = capped_scores(jnp.asarray(dataset.inputs[client.test] / 127.5 - 1), 1.0)
        want.append(auc.macro(np.asarray(scores), dataset.labels[client.test]))
    np.testing.assert_allclose(scored.auc, want, rtol=1e-6)
    np.testing.assert_array_equal(scored.accuracy["test"]["cap"], without.accuracy["test"]["cap"])
    assert without.auc is None and 0 < np.isnan(want).sum() < NUM_CLIENTS
    row, old = evaluation_row(scored, ("cap",)), evaluation_row(without, ("cap",))
    assert row.keys() - old.keys() == {"auc", "auc_undefined", "client_auc"}
    assert row["auc"] == pytest.approx(np.nanmean(want))
    assert row["auc_undefined"] == np.isnan(want).sum() - sum(count == 0 for count in TEST_COUNTS)
    assert [x is None for x in row["client_auc"]] == list(np.isnan(want))
    some = evaluation_row(sim.evaluate(state, np.array([0, 3])), ("cap",), np.array([0, 3]))
    assert some["client_auc"] == [row["client_auc"][i] for i in (0, 3)]


def test_nobody_is_scored_where_nobody_is_asked_for():
    sim = simulation()
    assert not sim.evaluate(sim.init(), np.array([], int)).accuracy


def test_clients_without_test_samples_have_no_score_and_end_no_run():
    (without,) = np.flatnonzero(TEST_COUNTS == 0)
    _, history = run(simulation(), 3, only=[without], patience=1)
    assert history[-1]["round"] == 3
    assert not any("accuracy" in row for row in history)
