"""Cross-entropy over a masked batch."""

import jax
import jax.numpy as jnp
import optax


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of values [B] where mask [B] is True, 0 where it never is; masked-out values may be
    anything, even NaN."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def cross_entropy(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean softmax cross-entropy. logits float [B, C], labels int [B], mask bool [B] -> scalar, in
    nats."""
    return masked_mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels), mask)
