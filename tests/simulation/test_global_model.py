"""The server's own model, scored on all clients' test samples."""

import jax
import numpy as np
import pytest

from fedjax_ht.core.scoring_options import Scoring
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, make_simulation
from tests.federations import (
    TRAINING,
    federation_data,
    normed_federation,
    samples,
    to_device,
    to_host,
)

FEDERATION, DATA, BATCH_SIZE = normed_federation(), federation_data(normed_federation()), 5


def simulation(statistics: str = "batch") -> Simulation:
    options = SimulationOptions(
        scoring=Scoring(batch_size=BATCH_SIZE, global_statistics=statistics)
    )
    return make_simulation(METHODS["heterofl"](TRAINING), FEDERATION, DATA, options)


def drawn(server, seed: int):
    """Weights that make something of an image."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), server)


def batches(name: str) -> list[np.ndarray]:
    """Samples of a pooled set, in order."""
    split = DATA.pooled[name]
    indices = np.asarray(split.indices)[: split.count]
    return [indices[i : i + BATCH_SIZE] for i in range(0, len(indices), BATCH_SIZE)]


def accuracy_by_hand(params, statistics: str) -> float:
    """A linear layer, the norm and the head, in float64."""
    dataset, _ = samples()
    (fc, norm), head = (params["base"][name] for name in ("fc", "norm")), params["head"]

    def hidden(rows):
        x = (dataset.inputs[rows].reshape(len(rows), -1) / 255 - 0.5) / 0.5
        return x @ np.float64(fc["kernel"]) + fc["bias"]

    seen = [hidden(rows) for rows in batches("train")]
    mean, var = (np.mean([of(x, axis=0) for x in seen], axis=0) for of in (np.mean, np.var))
    right = []
    for rows in batches("test"):
        x = hidden(rows)
        if statistics == "batch":
            mean, var = x.mean(0), x.var(0)
        x = (x - mean) / np.sqrt(var + 1e-5) * norm["scale"] + norm["bias"]
        right.extend(
            (x @ np.float64(head["kernel"]) + head["bias"]).argmax(1) == dataset.labels[rows]
        )
    return float(np.mean(right))


@pytest.mark.parametrize("statistics", ["batch", "training"])
def test_it_is_scored_on_all_test_samples(statistics):
    """The norms use the statistics of the batch, or the mean over batches of all training
    samples."""
    sim = simulation(statistics)
    state, told_apart = to_host(sim.init()), False
    for seed in range(6):
        server = drawn(state.server, seed)
        by_hand = {kind: accuracy_by_hand(server, kind) for kind in ("batch", "training")}
        scored = sim.evaluate(to_device(state._replace(server=server)))
        assert scored.global_accuracy == {"head": pytest.approx(by_hand[statistics])}
        told_apart |= by_hand["batch"] != by_hand["training"]
    assert told_apart
