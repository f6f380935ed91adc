"""Losses of features: distances to prototypes, contrasts, and the maximum mean discrepancy."""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.ops import pairwise_distance, safe_norm, squared_distance
from fedjax_ht.ops.arrays import Array, Scalar

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # FedKTL's released code


def kernel_means(
    x: Float[Array, "B H"],
    y: Float[Array, "B H"],
    weights: Float[Array, " B"],
    bandwidths: Float[Array, " A"] | Sequence[float],
) -> Float[Array, " A"]:
    """Computes the mean of each kernel over pairs, sum_jk p_j p_k exp(-|x_j - y_k|^2 / (2 a)).

    Args:
      x, y: float [B, H].
      weights: float [B] that sum to 1, the p of the rows of both.
      bandwidths: float [A], a, in units of squared distance.

    Returns:
      float32 [A].
    """
    squared = squared_distance(x, y)
    kernels = jnp.exp(-0.5 * squared / jnp.asarray(bandwidths)[:, None, None])
    return jnp.einsum("j,ajk,k->a", weights, kernels, weights)


def mmd_loss(
    x: Float[Array, "B H"],
    y: Float[Array, "B H"],
    mask: Bool[Array, " B"],
    bandwidths: Float[Array, " A"] | Sequence[float] = BANDWIDTHS,
) -> Float[Array, ""]:
    """Computes the squared maximum mean discrepancy of two samples (FedKTL Eq. 3).

    It is the biased estimate, with its diagonal.

    Args:
      x, y: float [B, H], two samples of one size.
      mask: bool [B], the real rows of both.
      bandwidths: float [A]; the kernel is the sum over a of exp(-d^2 / (2 a)).

    Returns:
      Scalar; 0 if the mask is empty.

    Example:
      >>> x, everyone = jnp.array([[0.0], [1.0]]), jnp.array([True, True])
      >>> fl.losses.mmd_loss(x, x, everyone)  # equal samples
      Array(0., dtype=float32)
      >>> bool(fl.losses.mmd_loss(x, x + 5.0, everyone) > 0.1)
      True
    """
    weights = mask / jnp.maximum(mask.sum(), 1)
    # Rows outside the mask may be NaN, and zero times NaN is NaN.
    x, y = jnp.where(mask[:, None], x, 0), jnp.where(mask[:, None], y, 0)
    within = kernel_means(x, x, weights, bandwidths) + kernel_means(y, y, weights, bandwidths)
    return jnp.sum(within - 2 * kernel_means(x, y, weights, bandwidths))


def class_prototype_distance(
    features: Float[Array, "B K"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    prototypes: Float[Array, "C K"],
    available: Bool[Array, " C"],
) -> Float[Array, ""]:
    """Computes the distance of a batch's class means to global prototypes (FedTGP Eq. 11).

    It is Euclidean, as in FedProto's Eq. 7. A mini-batch estimates the paper's loss between class
    prototypes: the average is over the batch's classes with a global prototype.

    Args:
      features: float [B, K].
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      prototypes: float [C, K]; rows without a prototype are never read.
      available: bool [C], True where a global prototype exists.

    Returns:
      Scalar; 0 if no class qualifies.
    """
    membership = jax.nn.one_hot(labels, len(prototypes)) * mask[:, None]  # [B, C]
    counts = membership.sum(0)
    means = membership.T @ jnp.where(mask[:, None], features, 0) / jnp.maximum(counts, 1)[:, None]
    distances = safe_norm(jnp.sum((means - jnp.where(available[:, None], prototypes, 0)) ** 2, -1))
    return masked_mean(distances, available & (counts > 0))


def sample_prototype_mse(
    features: Float[Array, "B K"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    prototypes: Float[Array, "C K"],
    available: Bool[Array, " C"],
) -> Float[Array, ""]:
    """Computes the mean square between samples' features and their classes' global prototypes.

    This is the form of FedProto's and FedTGP's released code; the mean is over samples and
    features. A sample whose class has no prototype has zero loss. Arguments as for
    `class_prototype_distance`.
    """
    known = available[labels][:, None]
    # Without a prototype the target is the feature itself, as a constant.
    target = jnp.where(known, prototypes[labels], jax.lax.stop_gradient(features))
    return masked_mean(jnp.mean((features - target) ** 2, -1), mask)


MarginRule = Literal["paper", "released"]


def adaptive_margin(
    centres: Float[Array, "C K"],
    present: Bool[Array, " C"],
    cap: Scalar,
    rule: MarginRule = "paper",
) -> Float[Array, ""]:
    """Computes the margin of FedTGP's contrastive loss (Eq. 9), capped at tau.

    Args:
      centres: float [C, K], the mean of the clients' prototypes per class.
      present: bool [C], the classes that a client uploaded; the others are never read.
      cap: the largest margin, tau.
      rule: "paper" takes the largest distance between any two centres, "released" the largest
        distance of a centre to its nearest neighbour.

    Returns:
      Scalar; `cap` if fewer than two classes are present.

    Example:
      >>> centres = jnp.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
      >>> everyone = jnp.ones(3, bool)
      >>> fl.losses.adaptive_margin(centres, everyone, cap=100.0)
      Array(5., dtype=float32)
      >>> fl.losses.adaptive_margin(centres, everyone, cap=2.0)
      Array(2., dtype=float32)
    """
    # Centres of absent classes may be NaN, and are compared like others.
    centres = jnp.where(present[:, None], centres, 0)
    pairs = present[:, None] & present[None, :] & ~jnp.eye(len(centres), dtype=bool)
    # Direct differences: the expanded square would lose the digits of near neighbours.
    distances = safe_norm(jnp.sum((centres[:, None] - centres[None]) ** 2, -1))
    if rule == "paper":
        margin = jnp.max(jnp.where(pairs, distances, 0))
    else:
        nearest = jnp.min(jnp.where(pairs, distances, jnp.inf), axis=1)
        margin = jnp.max(jnp.where(pairs.any(1), nearest, 0))
    return jnp.where(pairs.any(), jnp.minimum(margin, cap), cap)


def margin_contrastive(
    prototypes: Float[Array, "B K"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    global_prototypes: Float[Array, "C K"],
    margin: Scalar,
) -> Float[Array, ""]:
    """Computes FedTGP's contrastive loss of the clients' prototypes (Eq. 10).

    It is the cross-entropy over negative distances to the global prototypes, where the true class
    counts as `margin` further away.

    Args:
      prototypes: float [B, K], the clients' prototypes.
      labels: int [B], their classes.
      mask: bool [B], True for the samples that count.
      global_prototypes: float [C, K].
      margin: scalar, 0 for the standard contrastive loss.

    Returns:
      Scalar, in nats.

    Example:
      >>> prototypes, labels = jnp.array([[0.0, 1.0]]), jnp.array([0])
      >>> everyone, global_prototypes = jnp.array([True]), jnp.eye(2)
      >>> loss = fl.losses.margin_contrastive(
      ...     prototypes, labels, everyone, global_prototypes, margin=0.0
      ... )
      >>> round(float(loss), 3)  # log(1 + exp(sqrt(2))): the prototype is the other class's
      1.632
    """
    distances = pairwise_distance(prototypes, global_prototypes)
    distances = distances + margin * jax.nn.one_hot(labels, len(global_prototypes))
    return cross_entropy(-distances, labels, mask)


def supervised_contrastive(
    first: Float[Array, "B K"],
    second: Float[Array, "B K"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    temperature: Scalar,
) -> Float[Array, ""]:
    """Computes the supervised contrastive loss of two views (Khosla et al., NeurIPS 2020, Eq. 2).

    Every view i of a real sample is an anchor. Its positives p are all other views of its class,
    including its own second view. The loss is the mean over i and p of -log softmax at p of
    (z_i . z_a / temperature), over all other views a.

    Args:
      first, second: float [B, K], features of two views of each sample, used as they are.
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      temperature: the divisor of similarities, above 0.

    Returns:
      Scalar.
    """
    views = jnp.concatenate([first, second])
    labels, mask = jnp.tile(labels, 2), jnp.tile(mask, 2)
    views = jnp.where(mask[:, None], views, 0)
    compared = mask[None, :] & ~jnp.eye(len(views), dtype=bool)
    # Large and not infinite: without any other view the softmax would be NaN.
    similarity = jnp.where(compared, views @ views.T / temperature, -1e30)
    log_share = similarity - jax.nn.logsumexp(similarity, axis=1, keepdims=True)
    positives = compared & (labels[:, None] == labels[None, :])
    of_positives = jnp.sum(jnp.where(positives, log_share, 0), 1) / jnp.maximum(positives.sum(1), 1)
    return masked_mean(-of_positives, mask)
