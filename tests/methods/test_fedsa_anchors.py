"""FedSA with anchors against NumPy, in whole rounds; its anchors and its gap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.fedsa_anchors import draw_anchors, fedsa_anchors, mean_gap
from tests import tiny
from tests.methods.test_whole_rounds import ROUNDS, SAMPLES, TRAINING, batches, flat, simulated
from tests.reference import fedsa_anchors as reference
from tests.tiny import LR, C, K, check_model


def test_three_rounds():
    weights = {"weight": 0.7, "margin": 0.4, "calibration": 0.3}
    start, before, server, clients = simulated(fedsa_anchors(TRAINING, **weights, ema=0.9))
    anchors, means = np.asarray(start.anchors, np.float64), {}
    models = {i: flat(client["params"]) for i, client in enumerate(before)}
    own = {i: {} for i in SAMPLES}
    for ids in ROUNDS:
        for i in ids:
            of_client = models[i], batches()[i]
            models[i], own[i] = reference.train(*of_client, LR, own[i], anchors, **weights)
        anchors, means = reference.server_update(anchors, means, [own[i] for i in ids], 0.9)
    np.testing.assert_allclose(server.anchors, anchors, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(server.prototypes.mask, [c in means for c in range(C)])
    for c, row in means.items():
        np.testing.assert_allclose(server.prototypes.values[c], row, rtol=1e-4, atol=1e-5)
    for i, client in enumerate(clients):
        check_model(client["params"], models[i], rtol=1e-4, atol=1e-5)
        gap = reference.gap(list(own[i].values()))
        np.testing.assert_allclose(client["gap"], gap, rtol=1e-4)


def test_anchors_are_normalised_over_classes_and_never_negative():
    anchors = draw_anchors(jax.random.key(0), (C, K))
    assert (anchors >= 0).all() and (anchors.max(0) > 0).any()
    assert (draw_anchors(jax.random.key(1), (C, K)) != anchors).any()


@pytest.mark.parametrize("present, want", [([0, 1, 1], 5.0), ([0, 1, 0], 0.0), ([0, 0, 0], 0.0)])
def test_the_gap_is_of_the_classes_that_there_are(present, want):
    rows = jnp.array([[0.0, 0.0], [1.0, 0.0], [4.0, 4.0]])
    assert mean_gap(rows, jnp.array(present, bool)) == pytest.approx(want)


def test_it_predicts_the_nearest_class_mean_and_not_the_nearest_anchor():
    method, ctx = fedsa_anchors(TRAINING), tiny.context(0)
    client = method.init_client(tiny.BUCKET, ctx)
    server = method.init_server(tiny.ONE_BUCKET, jax.random.key(0))
    x = jnp.ones((1, 2, 2, 1))
    flattened = flat(client["params"])
    row = np.ones((1, 4)) @ flattened["base_kernel"] + flattened["base_bias"]
    means = jnp.asarray(row + np.arange(C)[:, None], jnp.float32)
    held = server.prototypes._replace(values=means, mask=jnp.array([False, True, True, False]))
    server = server._replace(prototypes=held)
    scores = method.predict(tiny.BUCKET, client, server, x, jnp.ones(1, bool))["prototype"]
    distances = np.sqrt(K) * np.array([1, 2])
    np.testing.assert_allclose(scores[0, 1:3], -distances, rtol=1e-4)
    assert np.isneginf(scores[0, [0, 3]]).all()
