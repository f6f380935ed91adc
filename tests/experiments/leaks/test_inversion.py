"""Images found from what a client sends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.leaks import inversion
from experiments.leaks.images import psnr
from experiments.leaks.imitation import Observation
from experiments.leaks.inversion import Search, in_order, invert
from tests.experiments.leaks.victims import ROOT, attacked, image_of, victim_of


@pytest.fixture(scope="module")
def linear():
    """An image of FedAvg's client with a linear model, and the attack on it."""
    victim, state = victim_of("fedavg")
    images, labels = image_of(2)
    return images, *attacked(victim, state, images, labels)


def test_dlg_finds_the_image_of_a_linear_model(linear):
    images, simulate, seen = linear
    recovered = invert(simulate, seen, images.shape, jax.random.key(2), Search(steps=300))
    assert psnr(recovered.images, images) > 60
    assert recovered.loss < 1e-6


def test_of_several_starts_the_nearest_is_taken(linear):
    """After one step of next to nothing: the first images are what was drawn."""
    images, simulate, seen = linear
    search = Search(steps=1, rate=1e-9, starts=3)
    best = invert(simulate, seen, images.shape, ROOT, search)
    drawn = [jax.random.uniform(key, images.shape) for key in jax.random.split(ROOT, 3)]
    losses = [inversion.relative_square(simulate(seen.known, x), seen.change) for x in drawn]
    np.testing.assert_allclose(best.loss, min(losses), rtol=1e-4)
    np.testing.assert_allclose(best.images, drawn[np.argmin(losses)], atol=1e-6)


def test_distances():
    a, b = jnp.array([3.0, 4.0]), jnp.array([4.0, -3.0])
    np.testing.assert_allclose(inversion.relative_square(a, b), 2, rtol=1e-6)
    np.testing.assert_allclose(inversion.one_less_cosine(a, b), 1, rtol=1e-6)
    np.testing.assert_allclose(inversion.one_less_cosine(2 * a, a), 0, atol=1e-6)
    assert inversion.one_less_cosine(0 * a, a) == 1
    steps = jnp.array([[0.0, 1.0], [0.5, 0.5]])[None, :, :, None]
    np.testing.assert_allclose(inversion.total_variation(steps), 0.5 + 0.5)


def test_found_images_come_in_the_order_of_the_real_ones():
    real = np.random.default_rng(0).random((4, 2, 2, 1))
    np.testing.assert_array_equal(in_order(real[[2, 0, 3, 1]], real), real)


@pytest.mark.parametrize("distance", ["squared", "cosine"])
def test_where_there_is_no_gradient_images_stay_images(distance):
    def flat(held, x):
        return jnp.sqrt(jnp.sum(0 * x)) * jnp.ones(3)

    recovered = invert(
        flat, Observation((), jnp.ones(3)), (1, 2, 2, 1), ROOT, Search(distance, steps=2)
    )
    first = jax.random.uniform(jax.random.split(ROOT, 1)[0], (1, 2, 2, 1))
    np.testing.assert_array_equal(recovered.images, first)


def test_bad_fields_of_a_search_are_refused():
    with pytest.raises(ValueError, match=r"search\.steps is 0"):
        invert(None, None, (1, 2, 2, 1), None, Search(steps=0))
