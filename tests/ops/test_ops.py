import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.ops import adaptive_pool, batch_norm, max_pool, pairwise_distance, product, safe_norm
from tests.reference import conv as ref
from tests.reference import norm as norm_reference
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


def test_a_window_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match="a kernel of 3 does not fit 1 pixels with padding 0"):
        max_pool(jnp.ones((1, 3, 1, 1)), 3, 2)
    assert max_pool(jnp.ones((1, 2, 1, 1)), 3, 3, ceil=True).shape == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("length", "width"), [(6, 6), (6, 3), (3, 6), (7, 3), (5, 8), (12, 8)], ids=str
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
    want = norm_reference.batch_norm_gradients(
        np.float64(arguments[0]), mask, SCALE, BIAS, *UPSTREAM
    )
    for name, a, b in zip(("x", "scale", "bias"), gradients, want):
        scale = np.abs(b).max() + 1e-3
        np.testing.assert_allclose(
            a / scale, b / scale, atol=2e-5 if mean < 1000 else 2e-3, err_msg=name
        )


def test_the_variance_does_not_cancel_where_the_mean_is_large():
    x = np.float32(RNG.normal(1000, 2, SHAPE))
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


A, B, UPSTREAMS = (
    RNG.normal(size=shape).astype(np.float32) for shape in ((7, 40), (40, 5), (7, 5))
)


def rounded(x):
    """To the nearest number with eight bits of mantissa, ties to even, bit by bit."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32).astype(np.float64)


def test_factors_are_rounded_and_sums_are_not():
    with jax.default_matmul_precision("bfloat16"):
        out, pull = jax.vjp(jax.jit(product), A, B)
        results = (out, *pull(UPSTREAMS))
    a, b, upstream = map(rounded, (A, B, UPSTREAMS))
    for got, want in zip(results, (a @ b, upstream @ b.T, a.T @ upstream)):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_leading_axes_stay():
    with jax.default_matmul_precision("bfloat16"):
        a = jnp.float32(RNG.normal(size=(2, 3, 40)))
        upstream = jnp.float32(RNG.normal(size=(2, 3, 5)))
        out, pull = jax.vjp(product, a, B)
        flat, pull_flat = jax.vjp(product, a.reshape(6, 40), B)
        np.testing.assert_array_equal(out, flat.reshape(2, 3, 5))
        for got, want in zip(pull(upstream), pull_flat(upstream.reshape(6, 5))):
            np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("rows, atol", [(7, 1e-6), (24, 1e-5)])  # many are turned, see below
def test_nothing_is_rounded_in_float32(rows, atol):
    a, upstream = normal(rows, 40), normal(rows, 5, seed=1)
    out, pull = jax.vjp(jax.jit(product), a, B)
    for got, want in zip((out, *pull(upstream)), (a @ B, upstream @ B.T, a.T @ upstream)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(
    ("device", "rows", "ins", "outs", "turned"),
    [
        ("cpu", 24, 40, 5, True),
        ("cpu", 19, 40, 5, False),  # few rows
        ("cpu", 24, 5, 6, False),  # a wide matrix
        ("gpu", 24, 40, 5, False),
    ],
)
def test_on_cpu_the_gradient_of_a_narrow_matrix_has_its_long_side_last(
    monkeypatch, device, rows, ins, outs, turned
):
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    gradient = jax.grad(lambda b, a: jnp.sum(product(a, b) ** 2))
    program = jax.make_jaxpr(gradient)(normal(ins, outs), normal(rows, ins))
    assert ("optimization_barrier" in str(program)) == turned


def test_layers_follow_the_precision():
    image = jnp.float32(RNG.normal(size=(2, 6, 6, 3)))
    vector = jnp.float32(RNG.normal(size=(2, 30)))
    for layer, x in ((Conv(4, 3), image), (Linear(4), vector)):
        variables = layer.init(jax.random.key(0), x)
        outputs = {}
        for precision in ("float32", "bfloat16"):
            with jax.default_matmul_precision(precision):
                outputs[precision] = np.asarray(
                    jax.jit(lambda v, x, layer=layer: layer.apply(v, x))(variables, x)
                )
        error = np.abs(outputs["bfloat16"] - outputs["float32"]).max()
        assert 1e-4 < error / np.abs(outputs["float32"]).max() < 2e-2


def test_distances_of_bfloat16_are_sums_of_float32():
    rows = jnp.asarray(np.random.default_rng(0).normal(100, 1, (4, 50)), jnp.bfloat16)
    exact = np.float64(rows)
    expected = np.sum((exact[:, None] - exact) ** 2, -1)
    np.testing.assert_allclose(pairwise_distance(rows, rows) ** 2, expected, atol=0.5)
