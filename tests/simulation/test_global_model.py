"""The server's own model, scored on all clients' test samples."""

import jax
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.simulation.rows import evaluation_row
from tests.federations import (
    TRAINING,
    federation_data,
    normed_federation,
    samples,
    to_device,
    to_host,
)
from tests.reference import auc

FEDERATION, DATA, BATCH_SIZE = normed_federation(), federation_data(normed_federation()), 5


def batches(name: str) -> list[np.ndarray]:
    split = DATA.pooled[name]
    indices = np.asarray(split.indices)[: split.count]
    return [indices[i : i + BATCH_SIZE] for i in range(0, len(indices), BATCH_SIZE)]


def scores_by_hand(params, statistics: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of all test samples: a linear layer, the norm and the head, in float64."""
    dataset, _ = samples()
    (fc, norm), head = (params["base"][name] for name in ("fc", "norm")), params["head"]

    def hidden(rows):
        x = (dataset.inputs[rows].reshape(len(rows), -1) / 255 - 0.5) / 0.5
        return x @ np.float64(fc["kernel"]) + fc["bias"]

    seen = [hidden(rows) for rows in batches("train")]
    mean, var = (np.mean([of(x, axis=0) for x in seen], axis=0) for of in (np.mean, np.var))
    scores, labels = [], []
    for rows in batches("test"):
        x = hidden(rows)
        if statistics == "batch":
            mean, var = x.mean(0), x.var(0)
        x = (x - mean) / np.sqrt(var + 1e-5) * norm["scale"] + norm["bias"]
        scores.append(x @ np.float64(head["kernel"]) + head["bias"])
        labels.append(dataset.labels[rows])
    return np.concatenate(scores), np.concatenate(labels)


def accuracy_of(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(scores.argmax(1) == labels))


def macro_f1_of(scores: np.ndarray, labels: np.ndarray) -> float:
    guesses, values = scores.argmax(1), []
    for c in set(labels) | set(guesses):
        right = np.sum((guesses == c) & (labels == c))
        values.append(2 * right / (np.sum(guesses == c) + np.sum(labels == c)))
    return float(np.mean(values))


@pytest.mark.parametrize("statistics", ["batch", "training"])
def test_it_is_scored_on_all_test_samples(statistics):
    """Norms use the batch's statistics, or the mean over batches of all training samples."""
    scoring = fl.Scoring(batch_size=BATCH_SIZE, global_statistics=statistics, auc=True)
    options = fl.SimulationOptions(scoring=scoring)
    sim = fl.make_simulation(fl.heterofl(TRAINING), FEDERATION, DATA, options)
    state, told_apart = to_host(sim.init()), False
    for seed in range(6):
        rng = np.random.default_rng(seed)
        server = jax.tree.map(lambda x, rng=rng: np.float32(rng.normal(size=x.shape)), state.server)
        scores = {kind: scores_by_hand(server, kind) for kind in ("batch", "training")}
        by_hand = {kind: accuracy_of(*of_kind) for kind, of_kind in scores.items()}
        scored = sim.evaluate(to_device(state._replace(server=server)))
        assert scored.global_accuracy == {"head": pytest.approx(by_hand[statistics])}
        row = evaluation_row(scored, ("head",))
        assert row["global_macro_f1_head"] == pytest.approx(macro_f1_of(*scores[statistics]))
        assert row["global_auc_head"] == pytest.approx(auc.macro(*scores[statistics]), rel=1e-6)
        told_apart |= by_hand["batch"] != by_hand["training"]
    assert told_apart
