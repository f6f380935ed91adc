"""Losses of a generator beside that of its classes: diversity, and the length of embeddings."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.ops import safe_norm, squared_distance

DiversityForm = Literal["squares", "norms"]


def diversity_loss(noise: jax.Array, generated: jax.Array) -> jax.Array:
    """Computes FedGen's diversity loss, exp(-E_{j,k} d_noise(j, k) d_features(j, k)).

    The distances of two samples j and k are the mean squared difference of their noise and the mean
    absolute difference of their features.

    Args:
      noise: float [B, D].
      generated: float [B, K], the features generated from it.

    Returns:
      Scalar; 1 where all generated features are alike.
    """

    # One sample at a time: the differences of all pairs at once are B^2 K numbers, far slower on
    # CPU.
    def to_all(sample):
        of_noise = jnp.mean((noise - sample[0]) ** 2, -1)
        return jnp.mean(of_noise * jnp.mean(jnp.abs(generated - sample[1]), -1))

    return jnp.exp(-jnp.mean(lax.map(to_all, (noise, generated))))


def image_diversity(
    images: jax.Array, noise: jax.Array, mask: jax.Array, form: DiversityForm = "squares"
) -> jax.Array:
    """Computes DFRD's L_div, exp(-E_{j,k} d(s_j, s_k) d(h_j, h_k)) over pairs of real samples.

    Args:
      images: float [B, ...], s.
      noise: float [B, D], h.
      mask: bool [B], True for the samples that count.
      form: the distance d of n coordinates. "squares" is the mean squared difference, as released.
        "norms" is the Euclidean distance, as printed, but divided by sqrt(n): of two images
        the printed form is 1e-37 at 16 pixels and 0 at 28 in float32, and so is its slope.

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
    """Computes DFRD's released L_ey, the mean over samples of max(|E(y)| - bound sqrt(d), 0).

    It keeps a class embedding from growing.

    Args:
      embedding: float [B, d], E(y).
      mask: bool [B], True for the samples that count.
      bound: the bound B on norms, above 0.
    """
    norms = safe_norm(jnp.sum(embedding**2, -1))
    return masked_mean(jnp.maximum(norms - bound * embedding.shape[-1] ** 0.5, 0), mask)
