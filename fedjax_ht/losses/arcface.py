"""Classification by angles to fixed class vectors: the additive angular margin of ArcFace."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_ht.losses.classification import cross_entropy
from fedjax_ht.ops.arrays import Array, Scalar

CLAMP = 1e-7  # keeps the cosine off +-1, where the angle's slope is infinite


def cosines(
    rows: Float[Array, "B K"], vectors: Float[Array | np.ndarray, "K C"]
) -> Float[Array, "B C"]:
    """Computes the cosines of rows with fixed unit vectors.

    Args:
      rows: float [B, K].
      vectors: float [K, C], columns of length 1.

    Returns:
      float [B, C]; 0 for a row of zeros.

    Example:
      >>> fl.losses.cosines(jnp.array([[3.0, 4.0], [0.0, 0.0]]), jnp.eye(2))
      Array([[0.6, 0.8],
             [0. , 0. ]], dtype=float32)
    """
    squared = jnp.sum(rows * rows, -1, keepdims=True)
    return rows * jax.lax.rsqrt(jnp.maximum(squared, 1e-12)) @ vectors


def arcface_loss(
    cosine: Float[Array, "B C"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    scale: Scalar = 64.0,
    margin: float = 0.5,
) -> Float[Array, ""]:
    """Computes ArcFace's loss (FedKTL Eq. 1; Deng et al., CVPR 2019).

    It is the cross-entropy over scale * cos(theta_c), with the true class's angle widened by the
    margin. Where theta + margin passes pi there is no fallback, as in FedKTL's code.

    Args:
      cosine: float [B, C], see `cosines`.
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      scale: scale s of the cosines; 1 with margin 0 is the plain softmax over cosines (FedKTL,
        Table 17).
      margin: margin m, an angle in radians.

    Returns:
      Scalar, in nats.
    """
    true = jnp.clip(jnp.take_along_axis(cosine, labels[:, None], 1), -1 + CLAMP, 1 - CLAMP)
    # cos(arccos(true) + margin)
    widened = true * math.cos(margin) - jnp.sqrt(1 - true * true) * math.sin(margin)
    is_true = jax.nn.one_hot(labels, cosine.shape[-1], dtype=bool)
    return cross_entropy(scale * jnp.where(is_true, widened, cosine), labels, mask)
