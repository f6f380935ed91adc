"""A generator in units of its own latents' spread.

FedKTL's weights, its kernels' bandwidths and its optimiser's step were chosen for one generator; each of them means
something else where w is larger or smaller, although a scale of w shows in no image. In these units every generator's w
has the same spread, and the paper's numbers mean the same for all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.method import PyTree
from fedjax_ht.generators.base import Generator

REFERENCE_SPREAD = 0.84
"""Root mean square of w's coordinates about their mean, in units.

That of StyleGAN-XL's w, which the paper uses, is published nowhere, and its file has not been at hand. Mapping networks
of its kind have 0.77 to 0.85 at their start, since they keep second moments; the two shipped ones, as trained, 0.84.
"""

SAMPLES = 1000  # latents that the spread is measured on


class Ball(NamedTuple):
    """The smallest ball about the mean of valid latents that holds `SAMPLES` of them: centre float [H], radius []."""

    centre: jax.Array
    radius: jax.Array


class Weights(NamedTuple):
    """variables: of the generator within. unit: float32 scalar, its w is unit times the w in units. ball: in units."""

    variables: PyTree
    unit: jax.Array
    ball: Ball


def in_units(generator: Generator) -> Generator:
    """The same generator, whose w has spread `REFERENCE_SPREAD`: it takes and gives w divided by one number, measured
    on latents drawn by a fixed key. Its variables are `Weights`.

    Raises:
      ValueError: all latents are the same, or not finite.
    """
    with jax.ensure_compile_time_eval():  # a method may be made while another function is traced
        w = generator.sample_w(generator.variables, jax.random.key(0), SAMPLES)
        centre = w.mean(0)
        spread = jnp.sqrt(jnp.mean((w - centre) ** 2))
        if not 0 < float(spread) < float("inf"):
            raise ValueError(f"generator {generator.card.name!r} draws latents of spread {spread}; it must be above 0")
        unit = spread / REFERENCE_SPREAD
        ball = Ball(centre / unit, jnp.linalg.norm(w - centre, axis=-1).max() / unit)

    def sample_w(weights: Weights, key, n):
        return generator.sample_w(weights.variables, key, n) / weights.unit

    def synthesize(weights: Weights, w):
        return generator.synthesize(weights.variables, w * weights.unit)

    def conditional(weights: Weights, key, labels):
        return generator.conditional(weights.variables, key, labels) / weights.unit

    return generator._replace(
        sample_w=sample_w,
        synthesize=synthesize,
        variables=Weights(generator.variables, unit, ball),
        conditional=generator.conditional and conditional,
    )


def into(ball: Ball, latents: jax.Array) -> jax.Array:
    """Latents outside the ball moved to its surface, towards the centre; the others stay. float [n, H] -> the same."""
    away = latents - ball.centre
    distance = jnp.sqrt(jnp.maximum(jnp.sum(away * away, -1, keepdims=True), 1e-12))
    return jnp.where(distance > ball.radius, ball.centre + away * (ball.radius / distance), latents)
