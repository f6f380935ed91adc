import functools
import inspect

import jax
import numpy as np
import pytest

from fedjax_ht.losses import (
    adaptive_margin,
    class_prototype_distance,
    cross_entropy,
    margin_contrastive,
    masked_mean,
    sample_prototype_mse,
)
from tests.reference import classification, contrastive, prototype_losses
from tests.reference.gradients import numerical_gradient

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
B, C, K = 6, 5, 3

FEATURES = np.random.default_rng(0).normal(size=(B, K)).astype(np.float32)
LABELS = np.array([0, 2, 2, 4, 0, 1])
MASK = np.array([True, True, True, True, False, False])
PROTOTYPES = np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)
# class 4 is in the batch and has no prototype
AVAILABLE = np.array([True, True, True, False, False])


@functools.cache
def compiled(loss):
    """Value, and gradient by the first argument."""
    return jax.jit(jax.value_and_grad(loss))


def compare_with_reference(fast, slow, x, *arguments):
    value, gradient = compiled(fast)(x, *arguments)
    np.testing.assert_allclose(value, slow(x.astype(np.float64), *arguments), **CLOSE)
    np.testing.assert_allclose(
        gradient, numerical_gradient(lambda v: slow(v, *arguments), x), **CLOSE
    )


def test_masked_mean_never_reads_what_is_masked_out():
    values, mean = np.float32([1.0, np.nan, 3.0, np.inf]), jax.jit(masked_mean)
    assert mean(values, np.array([True, False, True, False])) == 2
    assert mean(values, np.zeros(4, bool)) == 0


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        (np.ones((4, 1)), np.ones(4, bool)),
        (np.ones(4), np.ones((4, 1), bool)),
        (np.ones(4), np.ones(4)),
    ],
)
def test_a_mask_that_would_broadcast_or_weigh_is_refused(values, mask):
    with pytest.raises(ValueError, match="give a bool mask of the values' shape"):
        inspect.unwrap(masked_mean)(values, mask)  # users have no checks of jaxtyping around it


def test_cross_entropy_equals_the_reference():
    logits = 5 * np.random.default_rng(2).normal(size=(B, C)).astype(np.float32)
    compare_with_reference(cross_entropy, classification.cross_entropy, logits, LABELS, MASK)


regularisers = pytest.mark.parametrize("loss", [class_prototype_distance, sample_prototype_mse])


@regularisers
def test_prototype_regulariser_equals_the_reference(loss):
    """It reads neither padding nor missing prototypes."""
    slow = getattr(prototype_losses, loss.__name__)
    prototypes = np.where(AVAILABLE[:, None], PROTOTYPES, np.nan)
    arguments = LABELS, MASK, prototypes, AVAILABLE
    compare_with_reference(loss, slow, FEATURES, *arguments)
    value, gradient = compiled(loss)(FEATURES, *arguments)
    np.testing.assert_array_equal(gradient[~MASK], 0)
    np.testing.assert_array_equal(gradient[3], 0)  # class 4
    features = np.where(MASK[:, None], FEATURES, np.nan)
    assert compiled(loss)(features, *arguments)[0] == value


@regularisers
def test_prototype_regulariser_has_finite_gradients_at_the_prototypes(loss):
    value, gradient = compiled(loss)(PROTOTYPES[LABELS], LABELS, MASK, PROTOTYPES, AVAILABLE)
    assert value < 1e-5
    assert np.isfinite(gradient).all()


margin_of = jax.jit(adaptive_margin, static_argnums=3)


@pytest.mark.parametrize("rule", ["paper", "released"])
def test_adaptive_margin_equals_the_reference(rule):
    rng = np.random.default_rng(3)
    for present in (
        np.ones(C, bool),
        np.array([1, 0, 1, 1, 0], bool),
        np.array([0, 1, 0, 0, 1], bool),
    ):
        centres = rng.normal(size=(C, K)).astype(np.float32)
        with_holes = np.where(present[:, None], centres, np.nan)
        for cap in (100.0, 0.5):
            want = contrastive.adaptive_margin(centres.astype(np.float64), present, cap, rule)
            np.testing.assert_allclose(margin_of(with_holes, present, cap, rule), want, rtol=1e-5)


@pytest.mark.parametrize("rule", ["paper", "released"])
@pytest.mark.parametrize("classes", [0, 1])
def test_adaptive_margin_of_fewer_than_two_classes_is_the_cap(rule, classes):
    assert margin_of(np.ones((C, K), np.float32), np.arange(C) < classes, 7.0, rule) == 7


def test_adaptive_margin_keeps_the_digits_of_near_neighbours():
    centres = np.float32([[1000.0, 0.0], [1000.001, 0.0]])
    gap = float(centres[1, 0] - centres[0, 0])
    np.testing.assert_allclose(margin_of(centres, np.ones(2, bool), 100.0), gap, rtol=1e-5)


@pytest.mark.parametrize("rule", ["paper", "released"])
def test_gradients_of_the_adaptive_margin_are_finite(rule):
    """The distance of a centre to itself is among them."""
    centres = np.random.default_rng(3).normal(size=(C, K)).astype(np.float32)
    assert np.isfinite(jax.grad(margin_of)(centres, np.ones(C, bool), 100.0, rule)).all()


@pytest.mark.parametrize("margin", [0.0, 2.5])
def test_margin_contrastive_equals_the_reference(margin):
    slow = contrastive.margin_contrastive
    compare_with_reference(margin_contrastive, slow, FEATURES, LABELS, MASK, PROTOTYPES, margin)
    compare_with_reference(
        lambda g, p: margin_contrastive(p, LABELS, MASK, g, margin),
        lambda g, p: slow(p, LABELS, MASK, g, margin),
        PROTOTYPES,
        FEATURES,
    )


def test_margin_contrastive_has_finite_gradients_at_coincident_points():
    gradient = jax.jit(jax.grad(margin_contrastive, argnums=(0, 3)))
    meet = gradient(PROTOTYPES, np.arange(C), np.ones(C, bool), PROTOTYPES, 1.0)
    assert all(np.isfinite(g).all() for g in meet)
