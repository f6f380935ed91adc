"""Cross-entropy of a masked batch."""

import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from fedjax_ht.ops.arrays import Array


def masked_mean(
    values: Float[Array, "*samples"], mask: Bool[Array, "*samples"]
) -> Float[Array, ""]:
    """Computes the mean of the values under a mask.

    Args:
      values: float [...]; values outside the mask are never read and may be NaN.
      mask: bool [...], True for the samples that count.

    Returns:
      Scalar; 0 where the mask is empty.

    Example:
      >>> fl.losses.masked_mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([True, True, False]))
      Array(2., dtype=float32)
    """
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
