"""Gradient inversion: search for images whose upload resembles the one that a client sent.

    squared  |u(x) - u|^2 / |u|^2, by Adam: DLG's distance (Zhu et al., NeurIPS 2019), relative to
             the upload
    cosine   1 - cos(u(x), u) + tv * total variation of x, by Adam on the signs of the gradients
             (Geiping et al., NeurIPS 2020)

u is the change that a client sent, and u(x) the one that images x would have given (`imitation`).

Settled here:
* Images stay within [0, 1] after every step (Geiping et al.; DLG has no such bound). DLG's L-BFGS
  is Adam here.
* The step falls to zero along a cosine.
* Pixels whose gradient is not finite are not moved; a model ruined by noise may have some.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from scipy.optimize import linear_sum_assignment

from experiments.leaks.imitation import Observation, Simulate
from fedjax_ht.check.options import Count, NonNegative, Positive, check_fields
from fedjax_ht.core.trees import Array

TINY = jnp.finfo(jnp.float32).tiny


class Search(NamedTuple):
    """The settings of an inversion.

    Attributes:
      distance: the distance of two uploads, see the module's docstring.
      tv: weight of the total variation, the mean absolute difference of neighbours along both axes.
      steps, rate: number of Adam's steps and its learning rate, in units of pixels from 0 to 1.
      starts: number of random starts; the one that ends nearest to the upload is kept.
    """

    distance: Literal["squared", "cosine"] = "squared"
    tv: NonNegative = 0.0
    steps: Count = 1000
    rate: Positive = 0.1
    starts: Count = 1


DLG, GEIPING = Search(), Search("cosine", tv=0.01)


class Inverted(NamedTuple):
    """The result of an inversion.

    Attributes:
      images: float32 [B, H, W, C] in [0, 1].
      loss: the final loss, a float32 scalar.
    """

    images: jax.Array
    loss: jax.Array


def total_variation(images: jax.Array) -> Array:
    """Averages absolute differences of neighbouring pixels of [B, H, W, C], along both axes."""
    total: Any = sum(jnp.mean(jnp.abs(jnp.diff(images, axis=axis))) for axis in (1, 2))
    return total


def relative_square(change: jax.Array, target: jax.Array) -> jax.Array:
    """Computes |change - target|^2 / |target|^2."""
    return jnp.sum((change - target) ** 2) / jnp.maximum(jnp.sum(target**2), TINY)


def one_less_cosine(change: jax.Array, target: jax.Array) -> jax.Array:
    """Computes 1 - cos of the angle between two uploads; 1 where one is zero."""
    square = jnp.sum(change**2) * jnp.sum(target**2)
    return 1 - jnp.sum(change * target) * lax.rsqrt(jnp.maximum(square, TINY))


DISTANCES = {"squared": relative_square, "cosine": one_less_cosine}


def invert(
    simulate: Simulate, observed: Observation, shape: tuple, key: jax.Array, search: Search
) -> Inverted:
    """Searches for images whose upload resembles the observed one.

    One compiled program serves all uploads of these shapes and all weights of the total variation.

    Args:
      simulate: a simulation of uploads that can be differentiated.
      observed: the upload as the attacker sees it.
      shape: shape of the images, (B, H, W, C).
      key: the key of the first images, uniform noise.
      search: settings of the search.

    Raises:
      ValueError: a field of the search is out of range.
    """
    check_fields(search, "search.")
    # The weight is traced, and the same in all static arguments.
    static = search._replace(tv=0.0)
    return _invert(simulate, observed, tuple(shape), key, jnp.float32(search.tv), static)


@functools.partial(jax.jit, static_argnames=("simulate", "shape", "search"))
def _invert(
    simulate: Simulate, observed: Observation, shape: tuple, key, tv: jax.Array, search: Search
) -> Inverted:
    distance, signs = DISTANCES[search.distance], search.distance == "cosine"
    optimizer = optax.adam(optax.cosine_decay_schedule(search.rate, search.steps))

    def loss(images):
        change = simulate(observed.known, images)
        return distance(change, observed.change) + tv * total_variation(images)

    def step(_, carry):
        images, memory = carry
        gradient = jax.grad(loss)(images)
        gradient = jnp.where(jnp.isfinite(gradient), gradient, 0)
        updates, memory = optimizer.update(jnp.sign(gradient) if signs else gradient, memory)
        return jnp.clip(images + updates, 0, 1), memory

    def start(key):
        first = jax.random.uniform(key, shape)
        images, _ = lax.fori_loop(0, search.steps, step, (first, optimizer.init(first)))
        return Inverted(images, loss(images))

    results = lax.map(start, jax.random.split(key, search.starts))
    return jax.tree.map(lambda x: x[jnp.nanargmin(results.loss)], results)


def in_order(images: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Matches images [B, H, W, C] to the real ones, and orders them like these.

    An upload has no order, so the assignment minimises the sum of squared distances.
    """
    cost = ((images[None] - real[:, None]) ** 2).mean((2, 3, 4))
    return images[linear_sum_assignment(cost)[1]]
