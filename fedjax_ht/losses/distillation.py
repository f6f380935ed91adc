"""Distillation: how far one model's prediction is from another's."""

import jax
import jax.numpy as jnp

from fedjax_ht.losses.classification import masked_mean


def kl_divergence(teacher: jax.Array, logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over samples of KL(softmax(teacher) || softmax(logits)): float [B, C] twice, mask bool [B] -> scalar, nats.

    Both sides are differentiated; a loss that takes the teacher as given passes it through `jax.lax.stop_gradient`.
    """
    given, own = jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits)
    return masked_mean(jnp.sum(jnp.exp(given) * (given - own), -1), mask)
