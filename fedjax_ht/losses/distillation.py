"""Distillation: how far one model's prediction is from another's."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.losses.classification import masked_mean

KLOrder = Literal["teacher_student", "student_teacher"]
"""Of a divergence, which is not symmetric: KL(teacher || student), as distillation usually has it,
or KL(student || teacher)."""


def kl_divergence(teacher: jax.Array, logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over samples of KL(softmax(teacher) || softmax(logits)): float [B, C] twice, mask bool
    [B] -> scalar, nats.

    Both sides are differentiated; a loss that takes the teacher as given passes it through
    `jax.lax.stop_gradient`.
    """
    given, own = jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits)
    return masked_mean(jnp.sum(jnp.exp(given) * (given - own), -1), mask)


def ordered(teacher: jax.Array, student: jax.Array, order: KLOrder) -> tuple[jax.Array, jax.Array]:
    """Returns the two sides of a divergence in this order."""
    return (teacher, student) if order == "teacher_student" else (student, teacher)
