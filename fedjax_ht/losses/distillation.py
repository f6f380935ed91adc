"""Distillation losses, of a student and of a generator.

The generator searches for images on which the student does not follow its teachers yet.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Bool, Float, Int

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.ops import safe_norm, squared_distance
from fedjax_ht.ops.arrays import Array, Scalar

KLOrder = Literal["teacher_student", "student_teacher"]
"""The order of a divergence's sides: KL(teacher || student), as is usual in distillation, or
KL(student || teacher)."""

Selection = Literal["diamond", "triangle", "nabla", "xor"]
"""The samples that count, by the predictions of teacher and student (DFRD, Section 3.1, Table 3).

diamond: the teacher predicts the label, the student another class (DFRD).
triangle: all (FedFTG).
nabla: they predict different classes (DENSE, as DFRD prints it).
xor: just one of them predicts the label (DENSE, as released with DFRD).
"""

Normaliser = Literal["batch", "selected"]
"""The divisor of a mean over selected samples.

batch: all samples, so that the loss grows with the share that is selected (DFRD's Eq. 3, where each
  sample's term is multiplied by 0 or 1).
selected: the selected samples alone (as released).
"""

DiversityForm = Literal["squares", "norms"]


def kl_divergence(
    teacher: Float[Array, "B C"], logits: Float[Array, "B C"], mask: Bool[Array, " B"]
) -> Float[Array, ""]:
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


def ordered(
    teacher: Float[Array, "*N B C"], student: Float[Array, "*M B C"], order: KLOrder
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the two sides of a divergence in this order."""
    return (teacher, student) if order == "teacher_student" else (student, teacher)


def selected(
    teacher: Float[Array, "B C"],
    student: Float[Array, "B C"],
    labels: Int[Array, " B"],
    selection: Selection,
) -> Bool[Array, " B"]:
    """Selects samples by the predictions of teacher and student.

    Args:
      teacher, student: logits, float [B, C]; ties predict the first class.
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
    teacher: Float[Array, "B C"],
    student: Float[Array, "B C"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    *,
    selection: Selection = "diamond",
    temperature: Scalar = 1.0,
    order: KLOrder = "teacher_student",
    student_path: bool = True,
    normaliser: Normaliser = "batch",
) -> Float[Array, ""]:
    """Computes DFRD's L_tran (Eq. 3), minus the mean KL of teacher and student on selected samples.

    The defaults are the paper's form. The released code's is order="student_teacher",
    student_path=False, normaliser="selected".

    Args:
      teacher, student: logits, float [B, C].
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      selection: the rule that selects samples, see `Selection`.
      temperature: the divisor of the logits; the loss is not scaled by its square.
      order: order of the KL's two sides.
      student_path: True also differentiates through the student; else it is a constant, and only
        the teacher guides a generator.
      normaliser: the divisor of the mean over selected samples, see `Normaliser`.

    Returns:
      Scalar, at most 0; 0 if no sample is selected.
    """
    chosen = mask & selected(teacher, student, labels, selection)
    student = student if student_path else lax.stop_gradient(student)
    first, second = ordered(teacher, student, order)
    value = -kl_divergence(first / temperature, second / temperature, chosen)
    if normaliser == "batch":
        value = value * chosen.sum() / jnp.maximum(mask.sum(), 1)
    return value


def disagreement(
    teacher: Float[Array, "B C"], student: Float[Array, "B C"], mask: Bool[Array, " B"]
) -> Float[Array, ""]:
    """Computes minus the mean KL(teacher || student) where they disagree (DENSE's L_adv).

    Args:
      teacher, student: logits, float [B, C], both differentiated.
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar: the mean is over all samples; those with equal predictions count as 0.
    """
    return transferability(teacher, student, jnp.argmax(teacher, -1), mask, selection="nabla")


def moment_distance(
    moments: Float[Array, "... 2 K"], target: Float[Array, "... 2 K"]
) -> Float[Array, "..."]:
    """Computes |mean - mean'| + |var - var'|, Euclidean norms (DENSE's L_bn of one layer).

    Args:
      moments, target: float [..., 2, K], mean and variance of a norm's input.

    Returns:
      float [...].
    """
    return safe_norm(jnp.sum((moments - target) ** 2, -1)).sum(-1)


def weighted_cross_entropy(
    logits: Float[Array, "N B C"],
    labels: Int[Array, " B"],
    weights: Float[Array, "N B"],
    mask: Bool[Array, " B"],
) -> Float[Array, ""]:
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
    first: Float[Array, "*N B C"],
    second: Float[Array, "*M B C"],
    weights: Float[Array, "N B"],
    mask: Bool[Array, " B"],
) -> Float[Array, ""]:
    """Sums over clients the mean over samples of weight times a KL (FedFTG).

    Args:
      first, second: logits, float [N, B, C] or [B, C]; the KL is KL(softmax(first) ||
        softmax(second)). Both sides are differentiated.
      weights: float [N, B].
      mask: bool [B], True for the samples that count.

    Returns:
      Scalar, in nats.
    """
    first, second = jax.nn.log_softmax(first), jax.nn.log_softmax(second)
    return masked_mean(jnp.sum(weights * jnp.sum(jnp.exp(first) * (first - second), -1), 0), mask)


def diversity_loss(noise: Float[Array, "B D"], generated: Float[Array, "B K"]) -> Float[Array, ""]:
    """Computes FedGen's diversity loss, exp(-E_{j,k} d_noise(j, k) d_features(j, k)).

    The distances of two samples j and k are the mean squared difference of their noise and the mean
    absolute difference of their features.

    Args:
      noise: float [B, D].
      generated: float [B, K], the features generated from it.

    Returns:
      Scalar; 1 if all generated features are equal.
    """

    # One sample at a time: the differences of all pairs at once are B^2 K numbers, far slower on
    # CPU.
    def to_all(sample):
        of_noise = jnp.mean((noise - sample[0]) ** 2, -1)
        return jnp.mean(of_noise * jnp.mean(jnp.abs(generated - sample[1]), -1))

    return jnp.exp(-jnp.mean(lax.map(to_all, (noise, generated))))


def image_diversity(
    images: Float[Array, "B ..."],
    noise: Float[Array, "B D"],
    mask: Bool[Array, " B"],
    form: DiversityForm = "squares",
) -> Float[Array, ""]:
    """Computes DFRD's L_div, exp(-E_{j,k} d(s_j, s_k) d(h_j, h_k)) over pairs of real samples.

    Args:
      images: float [B, ...], s.
      noise: float [B, D], h.
      mask: bool [B], True for the samples that count.
      form: the distance d of n coordinates. "squares" is the mean squared difference, as released.
        "norms" is the Euclidean distance, as printed, but divided by sqrt(n): the printed form of
        two images is 1e-37 at 16 pixels and 0 at 28 in float32, as is its gradient.

    Returns:
      Scalar; 1 if all samples are equal, where its gradient is finite.
    """

    def distances(x: Float[Array, "B ..."]) -> Float[Array, "B B"]:
        x = jnp.where(mask[:, None], x.reshape(len(x), -1), 0)
        squared = squared_distance(x, x) / x.shape[-1]
        return squared if form == "squares" else safe_norm(squared)

    pairs = mask[:, None] & mask[None, :]
    return jnp.exp(-masked_mean(distances(images) * distances(noise), pairs))


def embedding_excess(
    embedding: Float[Array, "B d"], mask: Bool[Array, " B"], bound: Scalar
) -> Float[Array, ""]:
    """Computes DFRD's released L_ey, the mean over samples of max(|E(y)| - bound sqrt(d), 0).

    It keeps a class embedding from growing.

    Args:
      embedding: float [B, d], E(y).
      mask: bool [B], True for the samples that count.
      bound: the bound B on norms, above 0.
    """
    norms = safe_norm(jnp.sum(embedding**2, -1))
    return masked_mean(jnp.maximum(norms - bound * embedding.shape[-1] ** 0.5, 0), mask)
