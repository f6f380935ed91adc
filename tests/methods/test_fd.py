import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fd import fd
from tests import tiny
from tests.reference import averaging
from tests.reference import fd as reference
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LR, TRAINING, C

UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [2]}, C)  # nobody has class 3
STALE = Masked(jnp.full((C, C), 77.0), jnp.ones(C, bool))
LABELS = np.array([0, 2, 2, 0, 3, 0, 1])  # the last sample is left out


def test_server_update_equals_the_reference():
    """A class that nobody uploads in this round is forgotten; without uploads all logits stay."""
    method = fd(TRAINING)
    server, metrics = served(method, FEDERATION, STALE, tiny.receive_prototypes(UPLOADS, width=C))
    want = averaging.mean_by_class([UPLOADS[i] for i in range(3)])
    np.testing.assert_array_equal(server.mask, [True, True, True, False])
    assert metrics["classes"] == 3
    for c, mean in want.items():
        np.testing.assert_allclose(server.values[c], mean, rtol=1e-5, atol=1e-6)
    idle = tiny.receive_prototypes({0: {}, 2: {}}, width=C)  # clients without samples
    tiny.check_equal(served(method, FEDERATION, STALE, idle)[0], STALE)


@pytest.mark.parametrize(
    ("options", "weight", "form"),
    [
        ({}, 1.0, "mse_logits"),
        ({"weight": 3.0, "regulariser": "soft_cross_entropy"}, 3.0, "soft_cross_entropy"),
    ],
    ids=str,
)
def test_client_update_equals_the_reference(options, weight, form):
    method = fd(dataclasses.replace(TRAINING, epochs=2), **options)
    data = tiny.client_data(LABELS, padding=2)
    client = method.init_client(BUCKET, tiny.context(0))
    targets = 3 * np.random.default_rng(1).normal(size=(C, C)).astype(np.float32)
    # in the first round there are none
    for available in (np.array([1, 1, 0, 1], bool), np.zeros(C, bool)):
        known = jnp.where(available[:, None], targets, jnp.nan)
        sent = Masked(known, jnp.asarray(available))
        _, trained, uplink, metrics = tiny.play(method, client, sent, data=data)
        want, loss, means = reference.train(
            tiny.flat_params(client["params"]),
            2 * BATCHES,
            LR,
            targets=targets,
            available=available,
            weight=weight,
            regulariser=form,
        )
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        # Means over the logits that the steps saw; class 1 was in no batch.
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
        for c, mean in means.items():
            np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-5)
