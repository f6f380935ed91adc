import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fd import fd
from tests import tiny
from tests.reference import averaging
from tests.reference import fd as reference

C, K, LR = 4, 3, 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, epochs=2, shuffle=False)
FEDERATION = tiny.linear_federation(C, K)
BUCKET = FEDERATION.buckets[0]
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [2]}, C)  # nobody has class 3
STALE = Masked(jnp.full((C, C), 77.0), jnp.ones(C, bool))
# two steps of three an epoch; the last sample is left out
LABELS = np.array([0, 2, 2, 0, 3, 0, 1])


@pytest.fixture(scope="module")
def serve():
    method = fd(TRAINING)
    return jax.jit(
        lambda server, received: method.server_update(FEDERATION, server, received, None)
    )


@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
def test_server_update_equals_the_reference(serve, order):
    """A class that nobody uploads in this round is forgotten."""
    server, metrics = serve(STALE, tiny.receive_prototypes(UPLOADS, order, C, C))
    want = averaging.mean_by_class([UPLOADS[i] for i in range(3)])
    np.testing.assert_array_equal(server.mask, [True, True, True, False])
    assert metrics["classes"] == 3
    for c, mean in want.items():
        np.testing.assert_allclose(server.values[c], mean, rtol=1e-5, atol=1e-6)


def test_a_round_without_samples_leaves_the_logits(serve):
    server, _ = serve(STALE, tiny.receive_prototypes({0: {}, 2: {}}, tiny.ORDER, C, C))
    jax.tree.map(np.testing.assert_array_equal, server, STALE)


@pytest.mark.parametrize(
    ("options", "weight", "form"),
    [
        ({}, 1.0, "mse_logits"),
        ({"weight": 3.0, "regulariser": "soft_cross_entropy"}, 3.0, "soft_cross_entropy"),
    ],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight, form):
    method = fd(TRAINING, **options)
    data, ctx = tiny.client_data(LABELS, padding=2), tiny.context(0)
    client = method.init_client(BUCKET, ctx)
    update = jax.jit(
        lambda client, downlink: method.client_update(BUCKET, client, downlink, data, ctx)
    )
    targets = 3 * np.random.default_rng(1).normal(size=(C, C)).astype(np.float32)
    x = tiny.pixels(data)
    # in the first round there are none
    for available in (np.array([1, 1, 0, 1], bool), np.zeros(C, bool)):
        known = jnp.where(available[:, None], targets, jnp.nan)
        trained, uplink, metrics = update(client, Masked(known, jnp.asarray(available)))
        want, loss, means = reference.train(
            tiny.flat_params(client["params"]),
            2 * [(x[:3], LABELS[:3]), (x[3:6], LABELS[3:6])],
            LR,
            targets=targets,
            available=available,
            weight=weight,
            regulariser=form,
        )
        for name, value in tiny.flat_params(trained["params"]).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        # Means over the logits that the steps saw; class 1 was in no batch.
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-5)
