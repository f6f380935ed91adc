"""Distillation: the divergence of one model's prediction from another's."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.losses.classification import masked_mean

KLOrder = Literal["teacher_student", "student_teacher"]
"""The order of a divergence's sides: KL(teacher || student), as distillation usually has it, or
KL(student || teacher)."""


def kl_divergence(teacher: jax.Array, logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean over samples of KL(softmax(teacher) || softmax(logits)).

    Args:
      teacher, logits: float [B, C]. Both sides are differentiated; a loss with a constant teacher
        passes it through `jax.lax.stop_gradient`.
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar, in nats.
    """
    log_target, log_share = jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits)
    return masked_mean(jnp.sum(jnp.exp(log_target) * (log_target - log_share), -1), mask)


def ordered(teacher: jax.Array, student: jax.Array, order: KLOrder) -> tuple[jax.Array, jax.Array]:
    """Returns the two sides of a divergence in this order."""
    return (teacher, student) if order == "teacher_student" else (student, teacher)
