import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.ops import adaptive_pool, max_pool, pairwise_distance, safe_norm
from tests.reference import conv as ref
from tests.reference import pool
from tests.reference.distances import pairwise_distance as ref_distance

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def value_and_pullback(f, upstream):
    """(args) -> (f(args), gradients of sum(upstream * f(args))), compiled."""

    def run(*args):
        out, pull = jax.vjp(f, *args)
        return out, pull(jnp.asarray(upstream))

    return jax.jit(run)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 7, 2)], ids=["even", "odd"])
def test_max_pool_and_its_gradient_equal_the_reference(shape):
    x, upstream = normal(*shape), normal(shape[0], shape[1] // 2, shape[2] // 2, shape[3], seed=1)
    out, (dx,) = value_and_pullback(lambda x: max_pool(x, 2, 2), upstream)(x)
    np.testing.assert_allclose(out, ref.max_pool_2x2(x), rtol=1e-6)
    np.testing.assert_allclose(dx, ref.max_pool_2x2_gradient(x, upstream), rtol=1e-6)


@pytest.mark.parametrize(
    ("window", "stride", "padding", "ceil"),
    [
        (3, 2, 1, False),
        (3, 2, 0, True),
        (3, 1, 1, True),
        (2, 2, 0, True),
        (3, 2, 1, True),
        (2, 3, 1, True),
    ],
    ids=str,
)
def test_max_pool_of_any_window_equals_the_reference(window, stride, padding, ceil):
    x = normal(1, 5, 4, 2) - 3  # below zero: padding must not win
    out = max_pool(x, window, stride, padding, ceil)
    np.testing.assert_allclose(out, pool.max_pool(x, window, stride, padding, ceil), rtol=1e-6)


@pytest.mark.parametrize(
    ("length", "width"),
    [(6, 6), (6, 3), (3, 6), (7, 3), (5, 8), (12, 8), (960, 512), (1280, 512)],
    ids=str,
)
def test_adaptive_pool_averages_torchs_windows(length, width):
    x = normal(2, length)
    want = [x[:, i * length // width : -(-(i + 1) * length // width)].mean(1) for i in range(width)]
    np.testing.assert_allclose(adaptive_pool(x, width), np.stack(want, 1), rtol=1e-5, atol=1e-6)


def test_pairwise_distance_equals_the_reference():
    a, b = normal(4, 3), normal(5, 3, seed=1)
    np.testing.assert_allclose(pairwise_distance(a, b), ref_distance(a, b), **CLOSE)


def test_pairwise_distance_has_finite_gradients_where_points_coincide():
    a = jnp.asarray(normal(3, 3))
    distances, (da, db) = value_and_pullback(pairwise_distance, np.ones((3, 3), np.float32))(a, a)
    assert np.isfinite(da).all() and np.isfinite(db).all()
    # the square of zero distance, up to float32 rounding
    assert np.diagonal(distances).max() < 2e-3


def test_safe_norm_has_zero_gradient_at_zero():
    value, gradient = jax.value_and_grad(lambda x: safe_norm(jnp.sum(x * x)))(jnp.zeros(3))
    assert value <= 1e-6
    np.testing.assert_array_equal(gradient, 0)
    np.testing.assert_allclose(safe_norm(jnp.float32(9.0)), 3, rtol=1e-6)
