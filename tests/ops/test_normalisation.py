import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.ops import batch_norm
from tests.reference import norm as ref

RNG = np.random.default_rng(0)
SHAPE = (6, 3, 2, 5)
SCALE, BIAS = np.linspace(0.5, 2, 5), np.linspace(-1, 1, 5)
# of y, mean and variance
UPSTREAM = (RNG.normal(size=SHAPE), RNG.normal(size=5), RNG.normal(size=5))
MASKS = {
    "all": np.ones(6, bool),
    "some": np.array([False, True, True, False, True, True]),
    "one": np.array([False, False, True, False, False, False]),
    "none": np.zeros(6, bool),
}


def normalised(x, scale, bias, mask):
    return batch_norm(x, scale, bias, jnp.asarray(mask), 1e-5)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("mean", [0, 1000])
def test_gradients_equal_the_references(mask, mean):
    x = RNG.normal(mean, 2, SHAPE)
    arguments = [jnp.float32(a) for a in (x, SCALE, BIAS)]
    _, pull = jax.vjp(lambda *a: normalised(*a, mask), *arguments)
    gradients = jax.jit(pull)(jax.tree.map(jnp.float32, UPSTREAM))
    want = ref.batch_norm_gradients(np.float64(arguments[0]), mask, SCALE, BIAS, *UPSTREAM)
    for name, a, b in zip(("x", "scale", "bias"), gradients, want):
        scale = np.abs(b).max() + 1e-3
        np.testing.assert_allclose(
            a / scale, b / scale, atol=2e-5 if mean < 1000 else 2e-3, err_msg=name
        )


@pytest.mark.parametrize("mean", [0, 1000])
def test_the_variance_does_not_cancel_where_the_mean_is_large(mean):
    x = np.float32(RNG.normal(mean, 2, SHAPE))
    _, computed, var = jax.jit(lambda x: normalised(x, SCALE, BIAS, MASKS["some"]))(x)
    real = np.float64(x[MASKS["some"]])
    np.testing.assert_allclose(computed, real.mean((0, 1, 2)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(var, real.var((0, 1, 2)), rtol=1e-5)


def test_clients_side_by_side_are_normalised_apart():
    x = np.float32(RNG.normal(size=(3, *SHAPE)))
    masks = np.stack([MASKS["all"], MASKS["some"], MASKS["none"]])

    def total(x, mask):
        y, mean, var = normalised(x, SCALE, BIAS, mask)
        return (y * UPSTREAM[0]).sum() + (mean * UPSTREAM[1]).sum() + (var * UPSTREAM[2]).sum()

    together = jax.jit(jax.vmap(jax.grad(total)))(x, masks)
    for lane in range(3):
        np.testing.assert_allclose(
            together[lane], jax.jit(jax.grad(total))(x[lane], masks[lane]), rtol=1e-4, atol=1e-5
        )
