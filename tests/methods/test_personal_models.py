"""Ditto, APFL, FedRep and MOON against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.apfl import apfl
from fedjax_ht.methods.ditto import ditto
from fedjax_ht.methods.fedrep import fedrep
from fedjax_ht.methods.moon import cosine, model_contrast, moon
from tests import tiny
from tests.reference import one_architecture as reference
from tests.tiny import BUCKET, LR, check_equal, check_model, model
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

V, W, OTHER = (model(seed) for seed in range(3))
V_FLAT, W_FLAT, OTHER_FLAT = map(tiny.flat_params, (V, W, OTHER))


def both(**entries):
    """A client with V as its personal model, and another copy of the server's."""
    return {"params": V, "stats": {}, "shared": {"params": OTHER, "stats": {}}} | entries


def test_dittos_personal_model_is_pulled_to_the_received_one():
    received, trained, uplink, _ = play(ditto(TRAINING, lam=0.7), both(), W)
    check_equal(received, both() | {"shared": {"params": W, "stats": {}}})
    check_model(trained["params"], reference.ditto(V_FLAT, W_FLAT, BATCHES, LR, 0.7))
    # the upload is FedAvg's
    check_model(uplink.params, reference.fedprox(W_FLAT, BATCHES, LR, 0.0))


@pytest.mark.parametrize("make", [ditto, apfl])
def test_a_personal_model_starts_as_the_first_received(make):
    method, ctx = make(TRAINING), tiny.context(0)
    assert ctx.info.last_round == -1
    client = method.init_client(BUCKET, ctx)
    received = method.receive(BUCKET, client, W, None, ctx)
    check_equal(received["params"], W)
    check_equal(received["shared"]["params"], W)
    later = ctx._replace(info=ctx.info._replace(last_round=jnp.int32(0)))
    check_equal(method.receive(BUCKET, both(), W, None, later)["params"], V)


@pytest.mark.parametrize("every", ["step", "round"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_apfl_learns_model_and_share_by_the_mixture(share, every):
    """A share that would leave [0, 1] stays at its end."""
    client = both(share=jnp.float32(share))
    _, trained, uplink, metrics = play(apfl(TRAINING, alpha_every=every), client, W)
    v, w, after = reference.apfl(V_FLAT, W_FLAT, share, BATCHES, LR, every)
    check_model(trained["params"], v)
    check_model(uplink.params, w)
    np.testing.assert_allclose([trained["share"], metrics["share"]], after, rtol=1e-5)
    assert 0 <= after <= 1


def test_apfls_share_may_be_kept():
    client = both(share=jnp.float32(0.3))
    _, trained, _, _ = play(apfl(TRAINING, alpha_every="never"), client, W)
    assert trained["share"] == np.float32(0.3)


def test_apfl_predicts_by_the_mixture_with_the_newest_model():
    client = both(share=jnp.float32(0.3))
    x, mask = jnp.ones((2, 2, 2, 1)) * jnp.arange(1, 3)[:, None, None, None], jnp.ones(2, bool)
    method = apfl(TRAINING)
    received = method.receive(
        BUCKET,
        client,
        W,
        None,
        tiny.context(0)._replace(info=tiny.context(0).info._replace(last_round=jnp.int32(0))),
    )
    scores = method.predict(BUCKET, received, W, x, mask)["head"]
    mixed = reference.mixed(V_FLAT, W_FLAT, 0.3)
    flat = np.asarray(x).reshape(2, -1)
    rows = flat @ mixed["base_kernel"] + mixed["base_bias"]
    np.testing.assert_allclose(scores, rows @ mixed["head_kernel"] + mixed["head_bias"], rtol=1e-4)


def test_fedrep_trains_the_head_and_then_the_extractor():
    client = {"params": V, "stats": {}}
    method = fedrep(TRAINING, head_epochs=3)
    received, trained, uplink, _ = play(method, client, W["base"])
    start = V_FLAT | {k: v for k, v in W_FLAT.items() if k.startswith("base")}
    check_model(received["params"], start)
    with_head = reference.of_part(start, "head", BATCHES * 3, LR)
    check_model(trained["params"], reference.of_part(with_head, "base", BATCHES, LR))
    check_equal(uplink.params, trained["params"]["base"])


def test_moon_pulls_features_to_the_received_model_and_away_from_the_last():
    client = {"params": V, "stats": {}, "last": {"params": OTHER, "stats": {}}}
    method = moon(TRAINING, mu=2.0, tau=0.4)
    received, trained, uplink, _ = play(method, client, W)
    check_equal(received["last"], client["last"])
    want = reference.moon(W_FLAT, OTHER_FLAT, BATCHES, LR, 2.0, 0.4)
    check_model(trained["params"], want)
    check_equal(uplink.params, trained["params"])
    check_equal(trained["last"]["params"], trained["params"])
    # in the first round the last model is the received one
    received, trained, _, _ = play(method, client, W, ctx=tiny.context(0))
    check_equal(received["last"]["params"], W)
    check_model(trained["params"], reference.moon(W_FLAT, W_FLAT, BATCHES, LR, 2.0, 0.4))


def test_features_without_a_direction_have_no_contrast_and_a_slope():
    zero, ones = jnp.zeros((1, 3)), jnp.ones((1, 3))
    assert cosine(zero, ones) == 0
    slope = jax.grad(lambda z: model_contrast(z, ones, -ones, 1e-3).sum())(zero)
    assert np.isfinite(slope).all()
    assert np.isfinite(model_contrast(ones, -ones, ones, 1e-3)).all()
