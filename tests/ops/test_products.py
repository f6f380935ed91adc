import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.ops import product

RNG = np.random.default_rng(0)
A, B, UPSTREAM = (RNG.normal(size=shape).astype(np.float32) for shape in ((7, 40), (40, 5), (7, 5)))


def rounded(x):
    """To the nearest number with eight bits of mantissa, ties to even, bit by bit."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32).astype(np.float64)


def value_and_gradients(precision):
    with jax.default_matmul_precision(precision):
        out, pull = jax.vjp(jax.jit(product), A, B)
        return (out, *pull(UPSTREAM))


def test_factors_are_rounded_and_sums_are_not():
    results = value_and_gradients("bfloat16")
    a, b, upstream = map(rounded, (A, B, UPSTREAM))
    for got, want in zip(results, (a @ b, upstream @ b.T, a.T @ upstream)):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_leading_axes_stay():
    with jax.default_matmul_precision("bfloat16"):
        a, upstream = (
            jnp.float32(RNG.normal(size=(2, 3, 40))),
            jnp.float32(RNG.normal(size=(2, 3, 5))),
        )
        out, pull = jax.vjp(product, a, B)
        flat, pull_flat = jax.vjp(product, a.reshape(6, 40), B)
        np.testing.assert_array_equal(out, flat.reshape(2, 3, 5))
        for got, want in zip(pull(upstream), pull_flat(upstream.reshape(6, 5))):
            np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_nothing_is_rounded_in_float32():
    for got, want in zip(value_and_gradients("float32"), (A @ B, UPSTREAM @ B.T, A.T @ UPSTREAM)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


NARROW = tuple(RNG.normal(size=shape).astype(np.float32) for shape in ((24, 40), (40, 5), (24, 5)))


def test_the_gradient_of_a_narrow_matrix_is_a_product_too():
    a, b, upstream = NARROW
    out, pull = jax.vjp(jax.jit(product), a, b)
    for got, want in zip((out, *pull(upstream)), (a @ b, upstream @ b.T, a.T @ upstream)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


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
    text = str(
        jax.make_jaxpr(gradient)(
            np.zeros((ins, outs), np.float32), np.zeros((rows, ins), np.float32)
        )
    )
    assert ("optimization_barrier" in text) == turned


def test_layers_follow_the_precision():
    image, vector = (
        jnp.float32(RNG.normal(size=(2, 6, 6, 3))),
        jnp.float32(RNG.normal(size=(2, 30))),
    )
    for layer, x in ((Conv(4, 3), image), (Linear(4), vector)):
        variables = layer.init(jax.random.key(0), x)
        outputs = {}
        for precision in ("float32", "bfloat16"):
            with jax.default_matmul_precision(precision):
                outputs[precision] = np.asarray(
                    jax.jit(lambda v, x, layer=layer: layer.apply(v, x))(variables, x)
                )
        error = (
            np.abs(outputs["bfloat16"] - outputs["float32"]).max()
            / np.abs(outputs["float32"]).max()
        )
        assert 1e-4 < error < 2e-2
