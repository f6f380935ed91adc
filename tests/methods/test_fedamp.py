"""FedAMP's shares, clients of two architectures, and its refusal of negative shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.fedamp import attentive_mean, fedamp
from tests import tiny
from tests.federations import mixed_federation
from tests.tiny import ONE_BUCKET, TRAINING, check_equal


def test_a_model_that_is_far_away_has_no_share():
    models = {"w": jnp.array([[0.0], [1.0], [100.0]])}
    got = attentive_mean(models, jnp.int32(0), 2.0, sigma=4.0)["w"]
    np.testing.assert_allclose(got, [2 / 4 * np.exp(-1 / 4)], rtol=1e-6)
    got = attentive_mean(models, jnp.int32(2), 2.0, sigma=4.0)["w"]
    np.testing.assert_allclose(got, [100.0], rtol=1e-6)


def test_a_client_reads_and_writes_its_own_row_of_its_architecture():
    federation, method = tiny.linear_federation(), fedamp(TRAINING)
    start = method.init_server(federation, jax.random.key(0))
    uploads = {i: tiny.model(i) for i in range(4)}
    received = tiny.receive(uploads, tiny.ORDER, samples={2: 0}, arrived=[0, 1, 2])
    server, _ = method.server_update(federation, start, received, tiny.context())
    for i in range(4):
        want = uploads[i] if i in (0, 1) else jax.tree.map(lambda x: x[0], start[0])
        check_equal(jax.tree.map(lambda x, i=i: x[i], server[0]), want)
    heterogeneous = mixed_federation()
    rows = {
        len(jax.tree.leaves(m)[0]) for m in method.init_server(heterogeneous, jax.random.key(0))
    }
    assert rows == {len(heterogeneous.members(bucket)) for bucket in heterogeneous.buckets}


def test_a_negative_share_of_oneself_is_refused():
    with pytest.raises(ValueError, match=r"negative shares.*at least alpha times 3$"):
        fedamp(TRAINING, alpha=1.0, sigma=2.9).check(ONE_BUCKET)
    fedamp(TRAINING, alpha=1.0, sigma=3.0).check(ONE_BUCKET)
