"""Classification by angles to fixed class vectors: the additive angular margin of ArcFace."""

import math

import jax
import jax.numpy as jnp

from fedjax_ht.losses.classification import cross_entropy

CLAMP = 1e-7  # keeps the cosine off +-1, where the angle's slope is infinite


def cosines(rows: jax.Array, vectors: jax.Array) -> jax.Array:
    """Cosines of rows float [B, K] with unit columns float [K, C] -> [B, C]; 0 for a row of
    zeros."""
    squared = jnp.sum(rows * rows, -1, keepdims=True)
    return rows * jax.lax.rsqrt(jnp.maximum(squared, 1e-12)) @ vectors


def arcface_loss(
    cosine: jax.Array, labels: jax.Array, mask: jax.Array, scale: float = 64.0, margin: float = 0.5
) -> jax.Array:
    """Cross-entropy over scale * cos(theta_c), the true class's angle widened by the margin (FedKTL
    Eq. 1; Deng et al., CVPR 2019). Where theta + margin passes pi nothing falls back, as in
    FedKTL's code.

    Args:
      cosine: float [B, C].
      labels: int [B].
      mask: bool [B].
      scale: s; 1 with margin 0 is the plain softmax over cosines (FedKTL, Table 17).
      margin: m, in radians.
    """
    true = jnp.clip(jnp.take_along_axis(cosine, labels[:, None], 1), -1 + CLAMP, 1 - CLAMP)
    # cos(arccos(true) + margin)
    widened = true * math.cos(margin) - jnp.sqrt(1 - true * true) * math.sin(margin)
    is_true = jax.nn.one_hot(labels, cosine.shape[-1], dtype=bool)
    return cross_entropy(scale * jnp.where(is_true, widened, cosine), labels, mask)
