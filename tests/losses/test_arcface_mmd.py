import functools

import jax
import numpy as np
import pytest

from fedjax_ht.losses import arcface_loss, cosines, kernel_means, mmd_loss
from fedjax_ht.losses.features import BANDWIDTHS
from fedjax_ht.methods.shared.pairs import simplex_etf
from tests.reference import fedktl as reference
from tests.reference.gradients import numerical_gradient

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
B, C, K = 6, 4, 5

ROWS = np.random.default_rng(0).normal(size=(B, K)).astype(np.float32)
LABELS = np.array([0, 2, 2, 3, 0, 1])
MASK = np.array([True, True, True, True, False, False])
VECTORS = simplex_etf(C, K)
OTHERS = np.random.default_rng(1).normal(size=(B, K)).astype(np.float32) + 1


@functools.cache
def compiled(loss):
    """Value, and gradient by the first argument."""
    return jax.jit(jax.value_and_grad(loss))


def angular(rows, labels, mask, scale, margin):
    return arcface_loss(cosines(rows, VECTORS), labels, mask, scale, margin)


@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.5), (1.0, 0.0), (8.0, 2.0)])
def test_arcface_equals_the_reference(scale, margin):
    """Also where angle + margin passes pi: with 2 radians above 65 degrees. Masked rows are not
    read."""
    loss = compiled(functools.partial(angular, scale=scale, margin=margin))
    value, gradient = loss(np.where(MASK[:, None], ROWS, np.nan), LABELS, MASK)

    def slow(rows):
        return reference.arcface(
            reference.angles(rows, np.float64(VECTORS)), LABELS, MASK, scale, margin
        )

    assert (reference.angles(ROWS, VECTORS)[np.arange(4), LABELS[:4]] + 2 > np.pi).any()
    np.testing.assert_allclose(value, slow(np.float64(ROWS)), **CLOSE)
    want = numerical_gradient(slow, ROWS)
    np.testing.assert_allclose(gradient[:4], want[:4], rtol=1e-4, atol=1e-5)
    assert (loss(ROWS, LABELS, MASK)[1][4:] == 0).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_are_finite_at_the_ends_of_the_cosine(sign):
    """Rows on their class's vector, against it, next to both, and a row of zeros."""
    near = sign * VECTORS.T[LABELS] * np.array([1.0, 3.0, 1.0, 1.0, 1.0, 1.0])[:, None]
    near[2:4] += np.array([1e-4, 1e-3])[:, None]
    near[5] = 0
    loss = compiled(functools.partial(angular, scale=64.0, margin=0.5))
    value, gradient = loss(np.float32(near), LABELS, np.ones(B, bool))
    assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("bandwidths", [BANDWIDTHS, (0.5, 2.0)])
@pytest.mark.parametrize("count", [6, 4, 1])
def test_mmd_equals_the_reference(bandwidths, count):
    """Of the rows under the mask, without a look at the others."""
    mask = np.arange(B) < count
    rows, others = (np.where(mask[:, None], x, np.nan) for x in (ROWS, OTHERS))
    value, gradient = compiled(mmd_loss)(rows, others, mask, np.float32(bandwidths))
    x, y = np.float64(ROWS[:count]), np.float64(OTHERS[:count])
    np.testing.assert_allclose(value, reference.mmd(x, y, bandwidths), **CLOSE)
    assert value > 0.01
    want = reference.mmd_slope(x, y, bandwidths)
    np.testing.assert_allclose(gradient[:count], want, **CLOSE)
    np.testing.assert_allclose(
        want, numerical_gradient(lambda v: reference.mmd(v, y, bandwidths), x), atol=1e-8
    )
    assert (gradient[count:] == 0).all()


def test_mmd_of_nothing_is_zero():
    nothing = np.full_like(ROWS, np.nan)
    value, gradient = compiled(mmd_loss)(
        nothing, nothing, np.zeros(B, bool), np.float32(BANDWIDTHS)
    )
    assert value == 0 and (gradient == 0).all()


def test_means_of_single_kernels():
    weights = MASK / 4
    got = jax.jit(kernel_means)(ROWS, OTHERS, weights, np.float32([1.0, 30.0]))
    squares = ((ROWS[:4, None] - OTHERS[None, :4]) ** 2).sum(-1)
    np.testing.assert_allclose(got, [np.exp(-squares / 2 / a).mean() for a in (1, 30)], rtol=1e-5)
