"""Losses of classes: cross-entropy, and ArcFace's additive angular margin to fixed vectors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from fedjax_ht.ops.arrays import Array, Scalar


def masked_mean(
    values: Float[Array, "*samples"], mask: Bool[Array, "*samples"]
) -> Float[Array, ""]:
    """Computes the mean of the values under a mask.

    Args:
      values: float [...]; values outside the mask are never read and may be NaN.
      mask: bool, of the values' shape, True for the samples that count.

    Returns:
      Scalar; 0 if the mask is empty.

    Raises:
      ValueError: the mask is not bool, or has another shape. One line.

    Example:
      >>> fl.losses.masked_mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([True, True, False]))
      Array(2., dtype=float32)
    """
    # shapes would broadcast: values [B, 1] and a mask [B] to a sum of B x B entries
    if jnp.shape(values) != jnp.shape(mask) or jnp.result_type(mask) != jnp.bool_:
        raise ValueError(
            f"values have the shape {jnp.shape(values)}, and the mask is {jnp.result_type(mask)} "
            f"{jnp.shape(mask)}; give a bool mask of the values' shape"
        )
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def cross_entropy(
    logits: Float[Array, "B C"], labels: Int[Array, " B"], mask: Bool[Array, " B"]
) -> Float[Array, ""]:
    """Computes the mean softmax cross-entropy.

    Args:
      logits: float [B, C].
      labels: the samples' classes, int [B].
      mask: bool [B], the real samples.

    Returns:
      Scalar, in nats.

    Example:
      >>> logits = jnp.array([[2.0, 0.0], [0.0, 0.0]])
      >>> fl.losses.cross_entropy(logits, jnp.array([0, 1]), mask=jnp.array([False, True]))
      Array(0.6931472, dtype=float32)
    """
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels), mask)


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
    margin. There is no fallback for theta + margin above pi, as in FedKTL's code.

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
