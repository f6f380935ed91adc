"""A generator of two matrices, for tests that need one."""

import jax
import jax.numpy as jnp

from fedjax_ht.lab.generators import Card, Generator

LATENT_DIM, SIDE = 6, 5


def tiny_generator(trained_on: tuple[str, ...] = (), seed: int = 5) -> Generator:
    """Latents on a curved surface of three dimensions; 5x5 colour images of seven classes."""
    keys = jax.random.split(jax.random.key(seed), 3)
    variables = {
        "mapping": jax.random.normal(keys[0], (3, LATENT_DIM)),
        "image": jax.random.normal(keys[1], (LATENT_DIM, SIDE * SIDE * 3)),
        "labels": jax.random.normal(keys[2], (7, 3)),
    }

    def sample_w(variables, key, n):
        return jnp.abs(jax.random.normal(key, (n, 3)) @ variables["mapping"])

    def conditional(variables, key, labels):
        noise = 0.1 * jax.random.normal(key, (len(labels), 3))
        return jnp.abs((noise + variables["labels"][labels]) @ variables["mapping"])

    def synthesize(variables, w):
        return jax.nn.sigmoid(w @ variables["image"]).reshape(-1, SIDE, SIDE, 3)

    return Generator(
        Card("tiny", trained_on), LATENT_DIM, sample_w, synthesize, variables, conditional, 7
    )
