"""FedRE against NumPy: a client's mixture, and the server's training of the head."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fedre import Uplink, fedre, random_weights
from tests import tiny
from tests.reference import fedre as reference
from tests.reference import linear_client
from tests.reference import one_architecture as clients
from tests.standard import served
from tests.tiny import LR, C, K, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

LABELS = tiny.LABELS[:5]
play = functools.partial(tiny.play, data=tiny.SHORT_DATA)


def test_a_client_sends_a_mixture_of_its_class_means():
    head = model(2)["head"]
    received, trained, uplink, _ = play(fedre(TRAINING), {"params": model(1), "stats": {}}, head)
    params = clients.fedprox(tiny.flat_params(received["params"]), BATCHES, LR, 0.0)
    check_model(trained["params"], params)
    rows = linear_client.features(params, np.concatenate([x for x, _ in BATCHES]))
    means = linear_client.class_means(rows, LABELS)
    weights = np.asarray(uplink.labels.values)
    np.testing.assert_array_equal(uplink.labels.mask, [True, False, True, True])
    assert weights.sum() == pytest.approx(1) and len(set(weights[[0, 2, 3]])) == 3
    want = sum(weights[c] * mean for c, mean in means.items())
    np.testing.assert_allclose(uplink.mixture, want, rtol=1e-4, atol=1e-6)


def test_weights_are_of_a_clients_classes():
    assert not random_weights(jnp.zeros(C, bool), jax.random.key(0)).any()
    single = random_weights(jnp.arange(C) == 2, jax.random.key(0))
    np.testing.assert_array_equal(single, [0, 0, 1, 0])  # the plain class mean
    several = jax.vmap(lambda k: random_weights(jnp.arange(C) < 2, k))(
        jax.random.split(jax.random.key(0), 500)
    )
    assert (several[:, 2:] == 0).all()
    np.testing.assert_allclose(several.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(several.mean(0)[:2], 0.5, atol=0.03)


def test_server_update_equals_the_reference():
    """Client 2 has no samples, 3 is lost, 4 is padding; the rest is a batch, whatever its order."""
    rng = np.random.default_rng(0)
    mixtures = np.pad(rng.normal(size=(2, K)), ((0, 1), (0, 0))).astype(np.float32)
    labels = np.array([[0.3, 0, 0.7, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.float32)
    uplinks = {i: Uplink(mixtures[i], Masked(labels[i], labels[i] > 0)) for i in range(3)}
    received = tiny.receive(uplinks, tiny.IN_ONE_BUCKET)
    mixtures, labels = mixtures[:2], labels[:2]
    head = jax.tree.map(np.asarray, model(4)["head"])
    method = fedre(TRAINING, server_lr=0.2)
    new, metrics = served(method, FEDERATION, head, received, tiny.context())
    start = {k: v.astype(float) for k, v in head.items()}
    want = reference.server_update(start, mixtures, labels, [[0, 1]], 0.2)
    check_model(new, want)
    loss = reference.soft_loss(start, mixtures, labels)
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
