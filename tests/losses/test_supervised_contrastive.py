import functools

import jax
import numpy as np
import pytest

from fedjax_ht.losses import supervised_contrastive
from tests.reference import fedclassavg as reference
from tests.reference.gradients import numerical_gradient

B, K = 6, 3
FIRST, SECOND = np.random.default_rng(0).normal(size=(2, B, K)).astype(np.float32)
LABELS = np.array([0, 2, 2, 4, 0, 1])
MASK = np.array([True, True, True, True, False, True])


@functools.cache
def compiled():
    return jax.jit(jax.value_and_grad(supervised_contrastive, argnums=(0, 1)))


@pytest.mark.parametrize("temperature", [0.07, 1.0, 100.0])
def test_value_and_gradient_equal_the_reference(temperature):
    """Padding is not read."""
    padded = (np.where(MASK[:, None], x, np.nan) for x in (FIRST, SECOND))
    value, gradients = compiled()(*padded, LABELS, MASK, temperature)

    def slow(a, b):
        return reference.supervised_contrastive(a, b, LABELS, MASK, temperature)

    np.testing.assert_allclose(value, slow(FIRST, SECOND), rtol=1e-5)
    by_first = numerical_gradient(lambda v: slow(v, SECOND), FIRST)
    by_second = numerical_gradient(lambda v: slow(FIRST, v), SECOND)
    for gradient, want in zip(gradients, (by_first, by_second)):
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(gradient[~MASK], 0)


def test_long_features_at_a_low_temperature_have_a_finite_loss_with_steep_slopes():
    """The softmax is taken without overflow; that slopes grow by 1 / temperature is the loss itself."""
    first, second = 100 * FIRST, 100 * SECOND
    slopes = []
    for temperature in (0.05, 0.5):
        value, gradients = compiled()(first, second, LABELS, MASK, temperature)
        want = reference.supervised_contrastive(first, second, LABELS, MASK, temperature)
        np.testing.assert_allclose(value, want, rtol=1e-5)
        slopes.append(np.linalg.norm(gradients))
    assert slopes[0] == pytest.approx(10 * slopes[1], rel=1e-3) and slopes[1] > 100


@pytest.mark.parametrize("real", [0, 1])
def test_fewer_than_two_samples_have_nothing_to_contrast(real):
    """One sample's only other view is its positive."""
    value, gradients = compiled()(FIRST, SECOND, LABELS, np.arange(B) < real, 1.0)
    np.testing.assert_allclose(value, 0, atol=1e-6)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0, atol=1e-6)
