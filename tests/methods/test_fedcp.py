"""FedCP's policy: shares of two heads, noise, and the context of a client's head."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.methods.fedcp import context_of, fedcp, init_policy, shares_of
from tests import tiny
from tests.reference import fedcp as reference
from tests.tiny import BUCKET, TRAINING, K, check_equal, model

W, OTHER = model(0), model(1)
POLICY = init_policy(jax.random.key(2), K)
CONTEXT = np.array([0.3, -0.7, 0.2], np.float32)


def test_shares_of_both_heads_sum_to_one():
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(5, K)), rng.gumbel(size=(5, 2, K))
    got = shares_of(POLICY, jnp.float32(rows), CONTEXT, jnp.float32(noise))
    named = {f"policy_{name}": np.asarray(x, np.float64) for name, x in POLICY.items()}
    np.testing.assert_allclose(got, reference.shares(named, rows, CONTEXT, noise), rtol=1e-5)
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-6)


def test_the_context_is_the_sum_of_the_heads_rows():
    expected = np.asarray(W["head"]["kernel"]).sum(1)
    np.testing.assert_allclose(context_of(BUCKET, W["head"]), expected, rtol=1e-5)


def test_the_first_receipt_keeps_the_drawn_context():
    method, ctx = fedcp(TRAINING), tiny.context(0)
    client = method.init_client(BUCKET, ctx) | {"params": OTHER}
    assert ((client["context"] >= 0) & (client["context"] < 1)).all()
    downlink = W | {"policy": POLICY}
    first = method.receive(BUCKET, client, downlink, None, ctx)
    check_equal(first["context"], client["context"])
    check_equal(first["params"], W)
    later = ctx._replace(info=ctx.info._replace(last_round=jnp.int32(0)))
    kept = method.receive(BUCKET, client, downlink, None, later)
    check_equal(kept["params"], {"base": W["base"], "head": OTHER["head"]})
    check_equal(kept["context"], context_of(BUCKET, OTHER["head"]))


def test_a_head_without_a_direction_gives_finite_shares_and_slopes():
    rows, nothing = jnp.ones((2, K)), jnp.zeros(K)
    assert np.isfinite(shares_of(POLICY, rows, nothing)).all()
    slope = jax.grad(lambda v: shares_of(POLICY, rows, v)[:, 0].sum())(nothing)
    assert np.isfinite(slope).all()


def test_training_draws_noise_and_predicting_does_not():
    method = fedcp(TRAINING)
    client = {"params": W, "stats": {}, "policy": POLICY, "context": jnp.asarray(CONTEXT)}
    downlink = OTHER | {"policy": POLICY}
    trained = []
    for seed in (0, 1):
        ctx = tiny.context(0, seed, last_round=0)
        trained.append(tiny.play(method, client, downlink, ctx=ctx)[1])
    kernels = [np.asarray(state["params"]["head"]["kernel"]) for state in trained]
    assert (kernels[0] != kernels[1]).any()
    x, mask = jnp.ones((2, 2, 2, 1)), jnp.ones(2, bool)
    scores = [method.predict(BUCKET, client, downlink, x, mask)["head"] for _ in range(2)]
    check_equal(*scores)
