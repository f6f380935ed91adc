import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.models.layers import Norm
from tests.reference import norm as ref

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
X = np.random.default_rng(0).normal(2, 3, (4, 2, 3, 48)).astype(np.float32)
SCALE, BIAS = np.linspace(0.5, 2, 48), np.linspace(-1, 1, 48)
MEAN, VAR = np.linspace(1, 3, 48), np.linspace(4, 9, 48)


def variables(kind):
    params = {"scale": jnp.float32(SCALE), "bias": jnp.float32(BIAS)}
    stats = {"mean": jnp.float32(MEAN), "var": jnp.float32(VAR)}
    return {"params": params, "batch_stats": stats} if kind == "batch" else {"params": params}


def apply(kind, x, train, mask=None):
    run = jax.jit(lambda v, x: Norm(kind).apply(v, x, train, mask, mutable=["batch_stats"]))
    return run(variables(kind), x)


@pytest.mark.parametrize("mask", [None, np.array([True, False, True, True])], ids=["all", "masked"])
def test_batch_norm_in_training_equals_torchs_definition(mask):
    real = np.ones(4, bool) if mask is None else mask
    out, changed = apply("batch", X, True, mask)
    want, mean, var = ref.batch_norm(X.astype(np.float64), real, SCALE, BIAS, MEAN, VAR)
    np.testing.assert_allclose(out, want, **CLOSE)
    np.testing.assert_allclose(changed["batch_stats"]["mean"], mean, **CLOSE)
    np.testing.assert_allclose(changed["batch_stats"]["var"], var, **CLOSE)


def test_batch_norm_in_evaluation_uses_the_running_statistics():
    out, changed = apply("batch", X, False)
    np.testing.assert_allclose(out, (X - MEAN) / np.sqrt(VAR + 1e-5) * SCALE + BIAS, **CLOSE)
    np.testing.assert_array_equal(changed["batch_stats"]["mean"], np.float32(MEAN))


def test_masked_samples_are_not_read():
    mask = np.array([True, True, False, True])
    for kind in ("batch", "static_batch"):
        clean, changed = apply(kind, X, True, mask)
        dirty, same = apply(kind, np.where(mask[:, None, None, None], X, np.nan), True, mask)
        np.testing.assert_array_equal(clean[mask], dirty[mask])
        jax.tree.map(np.testing.assert_array_equal, changed, same)


def test_a_batch_without_samples_leaves_the_running_statistics():
    out, changed = apply("batch", X, True, np.zeros(4, bool))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(changed["batch_stats"]["mean"], np.float32(MEAN))
    np.testing.assert_array_equal(changed["batch_stats"]["var"], np.float32(VAR))


def test_one_value_per_channel_stays_finite():
    out, changed = apply("batch", X[:1, :1, :1], True)
    np.testing.assert_allclose(out[0, 0, 0], BIAS, **CLOSE)
    np.testing.assert_allclose(changed["batch_stats"]["var"], 0.9 * VAR, **CLOSE)


@pytest.mark.parametrize("train", [True, False])
def test_static_batch_norm_always_takes_the_batch(train):
    out, changed = apply("static_batch", X, train)
    np.testing.assert_allclose(
        out, ref.batch_norm(X, np.ones(4, bool), SCALE, BIAS, MEAN, VAR)[0], **CLOSE
    )
    assert not changed


@pytest.mark.parametrize(("kind", "size"), [("group", 16), ("layer", 48)])
def test_group_and_layer_norm_see_one_sample(kind, size):
    out, changed = apply(kind, X, True, np.array([True, False, False, False]))
    np.testing.assert_allclose(
        out, ref.group_norm(X.astype(np.float64), size, SCALE, BIAS), **CLOSE
    )
    assert not changed


def test_unknown_kind_is_named():
    with pytest.raises(ValueError, match="norm is 'instance'; it must be batch, group, layer"):
        apply("instance", X, True)
