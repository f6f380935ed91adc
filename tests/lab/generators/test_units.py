"""A generator's scale of w: as it is, or taken out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.shared.units import REFERENCE_SPREAD, Ball, in_units, into
from tests.generators_tiny import tiny_generator
from tests.reference import fedktl as reference

GENERATOR = tiny_generator()


def rescaled(factor: float):
    """Returns a generator that makes the same images of latents w `factor` times as large."""
    return GENERATOR._replace(
        sample_w=lambda v, key, n: factor * GENERATOR.sample_w(v, key, n),
        synthesize=lambda v, w: GENERATOR.synthesize(v, w / factor),
        conditional=lambda v, key, labels: factor * GENERATOR.conditional(v, key, labels),
    )


def test_units_are_of_the_generators_spread():
    key, labels = jax.random.key(3), jnp.arange(3)
    for factor in (1.0, 0.1, 10.0):
        plain = rescaled(factor)
        unit = in_units(plain, "spread")
        w = np.float64(unit.sample_w(unit.variables, jax.random.key(0), 1000))
        assert np.sqrt(((w - w.mean(0)) ** 2).mean()) == pytest.approx(REFERENCE_SPREAD, rel=1e-5)
        some = unit.sample_w(unit.variables, key, 4)
        raw = plain.sample_w(plain.variables, key, 4)
        np.testing.assert_allclose(some * unit.variables.unit, raw, rtol=1e-5)

        latents = unit.conditional(unit.variables, key, labels) * unit.variables.unit
        found = unit.synthesize(unit.variables, some), latents
        expected = (
            GENERATOR.synthesize(GENERATOR.variables, raw / factor),
            plain.conditional(plain.variables, key, labels),
        )
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        same = in_units(plain, "raw")
        np.testing.assert_array_equal(same.sample_w(same.variables, key, 4), raw)
        assert same.variables.unit == 1
    assert in_units(GENERATOR._replace(conditional=None), "spread").conditional is None


def test_into_equals_the_reference():
    ball = Ball(jnp.array([1.0, -1.0, 0.0]), jnp.float32(2.0))
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32) * 2
    rows[3] = ball.centre
    got = into(ball, jnp.asarray(rows))
    outside = np.linalg.norm(rows - ball.centre, axis=1) > 2
    assert 3 < outside.sum() < 17
    np.testing.assert_array_equal(got[~outside], rows[~outside])
    want = reference.into((np.float64(ball.centre), 2.0), np.float64(rows[outside]))
    np.testing.assert_allclose(got[outside], want, rtol=1e-5, atol=1e-6)
    slopes = jax.grad(lambda x: into(ball, x).sum())(jnp.asarray(rows))
    assert np.isfinite(slopes).all()
