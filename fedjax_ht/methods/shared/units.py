"""The scale of a generator's latents w, raw or in units of their own spread.

The effect of FedKTL's loss weights, kernel bandwidths and optimiser step depends on the scale of w,
although that scale changes no image.

"raw" uses w as stored in the file, as the paper and its code do. With the authors' generator, every
option means what it means there. "spread" gives the w of every generator the same spread, so that
generators can be compared with the same options.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.models.generator import Generator

Latents = Literal["raw", "spread"]

REFERENCE_SPREAD = 0.84
"""Root mean square of w's coordinates about their mean with "spread".

The number is arbitrary: natural_32 and fashion_mnist_32 had it at the end of their training.
Mapping networks have 0.77 to 0.87 with StyleGAN's initial weights, which keep second moments. The
spread of the paper's StyleGAN-XL is not published.
"""

SAMPLES = 1000  # latents that the spread is measured on


class Ball(NamedTuple):
    """The smallest ball about the mean of valid latents that holds `SAMPLES` of them.

    Attributes:
      centre: float [H], the mean.
      radius: the radius, a float scalar.
    """

    centre: jax.Array
    radius: jax.Array


class Weights(NamedTuple):
    """The variables of a generator whose w is in units, see `in_units`.

    Attributes:
      variables: variables of the generator within.
      unit: float32 scalar; the generator's w is `unit` times the w in units.
      ball: the ball of valid latents, in units.
    """

    variables: PyTree
    unit: jax.Array
    ball: Ball


@standard_numerics()
def in_units(generator: Generator, latents: Latents) -> Generator:
    """Wraps a generator to take and return w divided by its unit.

    Args:
      generator: the generator; its w is measured on latents drawn with a fixed key.
      latents: the unit of w: "raw" is 1; "spread" makes w's spread `REFERENCE_SPREAD`.

    Returns:
      A generator with `Weights` as variables.

    Raises:
      ValueError: all latents are the same, or not finite.
    """
    with jax.ensure_compile_time_eval():  # a method may be made while another function is traced
        w = generator.sample_w(generator.variables, jax.random.key(0), SAMPLES)
        centre = w.mean(0)
        spread = jnp.sqrt(jnp.mean((w - centre) ** 2))
        if not 0 < float(spread) < float("inf"):
            raise ValueError(
                f"generator {generator.card.name!r} draws latents of spread {spread}; it must be "
                "above 0"
            )
        unit = spread / REFERENCE_SPREAD if latents == "spread" else jnp.ones(())
        ball = Ball(centre / unit, jnp.linalg.norm(w - centre, axis=-1).max() / unit)

    def sample_w(weights: Weights, key, n):
        return generator.sample_w(weights.variables, key, n) / weights.unit

    def synthesize(weights: Weights, w):
        return generator.synthesize(weights.variables, w * weights.unit)

    def conditional(weights: Weights, key, labels):
        assert generator.conditional is not None
        return generator.conditional(weights.variables, key, labels) / weights.unit

    return generator._replace(
        sample_w=sample_w,
        synthesize=synthesize,
        variables=Weights(generator.variables, unit, ball),
        conditional=generator.conditional and conditional,
    )


def into(ball: Ball, latents: jax.Array) -> jax.Array:
    """Moves latents outside the ball to its surface, towards the centre; the others stay.

    float [n, H] -> [n, H].
    """
    away = latents - ball.centre
    # At least 1e-12: the square root has no gradient at the centre.
    distance = jnp.sqrt(jnp.maximum(jnp.sum(away * away, -1, keepdims=True), 1e-12))
    return jnp.where(distance > ball.radius, ball.centre + away * (ball.radius / distance), latents)
