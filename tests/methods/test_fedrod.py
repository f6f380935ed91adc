"""FedRoD's rules, the start of a personal head, and classes that a client lacks."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.methods.fedrod import fedrod, log_shares
from tests import tiny
from tests.tiny import BUCKET, TRAINING, check_equal, model

W, OTHER = model(0), model(1)


def test_the_personal_head_starts_as_the_first_received_and_stays():
    method, ctx = fedrod(TRAINING), tiny.context(0)
    client = {"params": OTHER, "stats": {}, "own": OTHER["head"]}
    first = method.receive(BUCKET, client, W, None, ctx)
    check_equal(first["own"], W["head"])
    later = ctx._replace(info=ctx.info._replace(last_round=jnp.int32(0)))
    kept = method.receive(BUCKET, client, W, None, later)
    check_equal(kept["own"], OTHER["head"])
    check_equal(kept["params"], W)


def test_it_predicts_by_both_heads_and_by_the_generic_one():
    method = fedrod(TRAINING)
    assert method.rules == ("personal", "generic")
    client = {"params": W, "stats": {}, "own": OTHER["head"]}
    x = jnp.ones((2, 2, 2, 1)) * jnp.arange(1, 3)[:, None, None, None]
    scores = method.predict(BUCKET, client, W, x, jnp.ones(2, bool))
    flat, other = tiny.flat_params(W), tiny.flat_params(OTHER)
    rows = np.asarray(x).reshape(2, -1) @ flat["base_kernel"] + flat["base_bias"]
    generic = rows @ flat["head_kernel"] + flat["head_bias"]
    np.testing.assert_allclose(scores["generic"], generic, rtol=1e-4)
    personal = generic + rows @ other["head_kernel"] + other["head_bias"]
    np.testing.assert_allclose(scores["personal"], personal, rtol=1e-4)


def test_absent_classes_have_no_part_and_no_nan():
    prior = log_shares(jnp.array([4, 0, 1]), 0.5)
    shares = jax.nn.softmax(jnp.array([0.0, 9.0, 0.0]) + prior)
    np.testing.assert_allclose(shares, [2 / 3, 0, 1 / 3], rtol=1e-6)
    slope = jax.grad(lambda z: jax.nn.log_softmax(z + log_shares(jnp.zeros(3), 1.0))[0])(
        jnp.zeros(3)
    )
    assert np.isfinite(slope).all()
