"""Adversarial losses of a generator: images on which a student does not follow its teachers yet."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.losses.distillation import KLOrder, kl_divergence, ordered
from fedjax_ht.ops import safe_norm

Selection = Literal["diamond", "triangle", "nabla", "xor"]
"""The samples that count, by the predictions of teacher and student (DFRD, Section 3.1, Table 3).

diamond: the teacher the label, the student another class (DFRD).
triangle: all (FedFTG).
nabla: two classes (DENSE, as DFRD prints it).
xor: just one of them the label (DENSE, as released with DFRD).
"""

Normaliser = Literal["batch", "selected"]
"""The divisor of a mean over selected samples.

batch: all samples, so that the loss grows with the share that is selected (DFRD's Eq. 3, where each
  sample's term is multiplied by 0 or 1).
selected: the selected samples alone (as released).
"""


def selected(
    teacher: jax.Array, student: jax.Array, labels: jax.Array, selection: Selection
) -> jax.Array:
    """Selects samples by the predictions of teacher and student.

    Args:
      teacher, student: logits, float [B, C]; of equal logits the first is the prediction.
      labels: the samples' classes, int [B].
      selection: the rule that selects samples, see `Selection`.

    Returns:
      bool [B].
    """
    predicted, learned = jnp.argmax(teacher, -1), jnp.argmax(student, -1)
    teacher_right, student_right = predicted == labels, learned == labels
    masks = {
        "diamond": teacher_right & ~student_right,
        "triangle": jnp.ones_like(teacher_right),
        "nabla": predicted != learned,
        "xor": teacher_right != student_right,
    }
    return masks[selection]


def transferability(
    teacher: jax.Array,
    student: jax.Array,
    labels: jax.Array,
    mask: jax.Array,
    selection: Selection = "diamond",
    temperature: float = 1.0,
    order: KLOrder = "teacher_student",
    student_path: bool = True,
    normaliser: Normaliser = "batch",
) -> jax.Array:
    """Computes minus the mean KL of teacher and student over selected samples (DFRD's L_tran, its
    Eq. 3).

    The defaults are the paper's form; the released code's is order="student_teacher",
    student_path=False, normaliser="selected".

    Args:
      teacher, student: logits, float [B, C].
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      selection: the rule that selects samples, see `Selection`.
      temperature: the divisor of the logits; the loss is not scaled by its square.
      order: order of the KL's two sides.
      student_path: True differentiates through the student, too; else it is a constant, and a
        generator is led by the teacher alone.
      normaliser: the divisor of the mean over selected samples, see `Normaliser`.

    Returns:
      Scalar, at most 0; 0 where no sample is selected.
    """
    chosen = mask & selected(teacher, student, labels, selection)
    student = student if student_path else lax.stop_gradient(student)
    first, second = ordered(teacher, student, order)
    value = -kl_divergence(first / temperature, second / temperature, chosen)
    if normaliser == "batch":
        value = value * chosen.sum() / jnp.maximum(mask.sum(), 1)
    return value


def disagreement(teacher: jax.Array, student: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes minus the mean KL(teacher || student) where they disagree (DENSE's L_adv).

    Args:
      teacher, student: logits, float [B, C], both differentiated.
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar: the mean is over all samples; those with equal predictions count with 0.
    """
    return transferability(teacher, student, jnp.argmax(teacher, -1), mask, selection="nabla")


def moment_distance(moments: jax.Array, target: jax.Array) -> jax.Array:
    """Computes |mean - mean'| + |var - var'|, Euclidean norms (DENSE's L_bn of one layer).

    Args:
      moments, target: float [..., 2, K], mean and variance of a norm's input.

    Returns:
      float [...].
    """
    return safe_norm(jnp.sum((moments - target) ** 2, -1)).sum(-1)


def weighted_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, mask: jax.Array
) -> jax.Array:
    """Sums over clients the mean over samples of weight times cross-entropy (FedFTG).

    Args:
      logits: float [N, B, C], of N clients.
      labels: the samples' classes, int [B].
      weights: float [N, B].
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar, in nats.
    """
    labels = jnp.broadcast_to(labels, weights.shape)
    errors = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return masked_mean(jnp.sum(weights * errors, 0), mask)


def weighted_kl(
    first: jax.Array, second: jax.Array, weights: jax.Array, mask: jax.Array
) -> jax.Array:
    """Sums over clients the mean over samples of weight times a KL (FedFTG).

    Args:
      first, second: logits, float [N, B, C] or [B, C]; the KL is that of softmax(first) from
        softmax(second). Both sides are differentiated.
      weights: float [N, B].
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar, in nats.
    """
    first, second = jax.nn.log_softmax(first), jax.nn.log_softmax(second)
    return masked_mean(jnp.sum(weights * jnp.sum(jnp.exp(first) * (first - second), -1), 0), mask)
