"""What a generator is trained on beside its classes."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.ops import safe_norm, squared_distance

DiversityForm = Literal["squares", "norms"]


def diversity_loss(noise: jax.Array, generated: jax.Array) -> jax.Array:
    """exp(-E_{j,k} d_noise(j, k) d_features(j, k)), the mean square and the mean absolute
    difference of two samples.

    noise float [B, D], generated float [B, K] -> scalar; 1 where all that is generated is alike.
    """

    # one sample at a time: the differences of all pairs at once are B^2 K numbers, far slower on
    # CPU
    def to_all(one):
        of_noise = jnp.mean((noise - one[0]) ** 2, -1)
        return jnp.mean(of_noise * jnp.mean(jnp.abs(generated - one[1]), -1))

    return jnp.exp(-jnp.mean(lax.map(to_all, (noise, generated))))


def image_diversity(
    images: jax.Array, noise: jax.Array, mask: jax.Array, form: DiversityForm = "squares"
) -> jax.Array:
    """exp(-E_{j,k} d(s_j, s_k) d(h_j, h_k)), over all pairs of real samples (DFRD's L_div).

    Args:
      images: float [B, ...], s.
      noise: float [B, D], h.
      mask: bool [B].
      form: what d is, of n coordinates. "squares" is the mean squared difference, as released.
        "norms" is the Euclidean distance, as printed, but divided by sqrt(n): the printed form of
        two images is 0 in float32, with its slope.

    Returns:
      Scalar; 1 where all samples are alike. Its slope there is finite.
    """

    def distances(x: jax.Array) -> jax.Array:
        x = jnp.where(mask[:, None], x.reshape(len(x), -1), 0)
        squared = squared_distance(x, x) / x.shape[-1]
        return squared if form == "squares" else safe_norm(squared)

    pairs = mask[:, None] & mask[None, :]
    return jnp.exp(-masked_mean(distances(images) * distances(noise), pairs))


def embedding_excess(embedding: jax.Array, mask: jax.Array, bound: float) -> jax.Array:
    """Mean over samples of max(|E(y)| - bound sqrt(d), 0): keeps a class embedding from growing
    (DFRD's released L_ey).

    embedding float [B, d], mask bool [B], bound above 0 -> scalar.
    """
    norms = safe_norm(jnp.sum(embedding**2, -1))
    return masked_mean(jnp.maximum(norms - bound * embedding.shape[-1] ** 0.5, 0), mask)
