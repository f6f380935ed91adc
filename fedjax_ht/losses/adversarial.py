"""A generator against a student: images on which it does not follow its teachers yet; and images
like the clients'."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.losses.distillation import KLOrder, kl_divergence, ordered
from fedjax_ht.ops import safe_norm

Selection = Literal["diamond", "triangle", "nabla", "xor"]
"""Which samples count, by what teacher and student predict (DFRD, Section 3.1 and Table 3).

diamond: the teacher the label, the student another class (DFRD).
triangle: all (FedFTG).
nabla: two classes (DENSE, as DFRD prints it).
xor: just one of them the label (DENSE, as released with DFRD).
"""

Normaliser = Literal["batch", "selected"]
"""Over what the mean of a loss of selected samples is taken.

batch: all samples, so that the loss grows with the share that is selected (DFRD's Eq. 3, where each
  sample's term is multiplied by 0 or 1).
selected: the selected samples alone (as released).
"""


def selected(
    teacher: jax.Array, student: jax.Array, labels: jax.Array, selection: Selection
) -> jax.Array:
    """Logits float [B, C] twice and labels int [B] -> bool [B]; of equal logits the first counts as
    the prediction."""
    guess, own = jnp.argmax(teacher, -1), jnp.argmax(student, -1)
    right, learned = guess == labels, own == labels
    return {
        "diamond": right & ~learned,
        "triangle": jnp.ones_like(right),
        "nabla": guess != own,
        "xor": right != learned,
    }[selection]


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
      labels: int [B].
      mask: bool [B].
      selection: see `Selection`.
      temperature: divides the logits; the loss is not scaled by its square.
      order: of the two sides.
      student_path: differentiate through the student, too; else it is a constant, and a generator
        is led by the teacher alone.
      normaliser: see `Normaliser`.

    Returns:
      Scalar, at most 0; 0 where no sample is selected.
    """
    chosen = mask & selected(teacher, student, labels, selection)
    student = student if student_path else lax.stop_gradient(student)
    first, second = ordered(teacher, student, order)
    value = -kl_divergence(first / temperature, second / temperature, chosen)
    return value if normaliser == "selected" else value * chosen.sum() / jnp.maximum(mask.sum(), 1)


def disagreement(teacher: jax.Array, student: jax.Array, mask: jax.Array) -> jax.Array:
    """Minus the mean over all samples of KL(teacher || student), where they predict the same class
    0 (DENSE's L_adv).

    Logits float [B, C] twice, both differentiated, mask bool [B] -> scalar.
    """
    return transferability(teacher, student, jnp.argmax(teacher, -1), mask, selection="nabla")


def moment_distance(moments: jax.Array, target: jax.Array) -> jax.Array:
    """|mean - mean'| + |var - var'|, Euclidean: how far a norm's input is from what it was
    elsewhere (DENSE's L_bn).

    float [..., 2, K] twice, mean and variance -> [...].
    """
    return safe_norm(jnp.sum((moments - target) ** 2, -1)).sum(-1)


def weighted_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, mask: jax.Array
) -> jax.Array:
    """Sum over clients of the mean over samples of weight times cross-entropy (FedFTG).

    logits float [N, B, C] of N clients, labels int [B], weights float [N, B], mask bool [B] ->
    scalar.
    """
    labels = jnp.broadcast_to(labels, weights.shape)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return masked_mean(jnp.sum(weights * each, 0), mask)


def weighted_kl(
    given: jax.Array, logits: jax.Array, weights: jax.Array, mask: jax.Array
) -> jax.Array:
    """Sum over clients of the mean over samples of weight times KL(softmax(given) ||
    softmax(logits)) (FedFTG).

    float [N, B, C] or [B, C] twice, weights float [N, B], mask bool [B] -> scalar. Both sides are
    differentiated.
    """
    first, second = jax.nn.log_softmax(given), jax.nn.log_softmax(logits)
    return masked_mean(jnp.sum(weights * jnp.sum(jnp.exp(first) * (first - second), -1), 0), mask)
