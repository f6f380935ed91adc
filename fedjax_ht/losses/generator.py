"""What a generator is trained on beside its classes."""

import jax
import jax.numpy as jnp
from jax import lax


def diversity_loss(noise: jax.Array, generated: jax.Array) -> jax.Array:
    """exp(-E_{j,k} d_noise(j, k) d_features(j, k)), the mean square and the mean absolute difference of two samples.

    noise float [B, D], generated float [B, K] -> scalar; 1 where all that is generated is alike.
    """

    def to_all(one):  # one sample at a time: the differences of all pairs at once are B^2 K numbers, far slower on CPU
        of_noise = jnp.mean((noise - one[0]) ** 2, -1)
        return jnp.mean(of_noise * jnp.mean(jnp.abs(generated - one[1]), -1))

    return jnp.exp(-jnp.mean(lax.map(to_all, (noise, generated))))
