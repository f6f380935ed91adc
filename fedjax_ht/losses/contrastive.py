"""Contrastive losses: FedTGP's with an adaptive margin, and the supervised one of two views."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.ops import pairwise_distance
from fedjax_ht.ops.arrays import Array, Scalar

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
      Scalar; `cap` where fewer than two classes are present.

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
    distances = jnp.sqrt(jnp.sum((centres[:, None] - centres[None]) ** 2, -1))
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

    Every view i of a real sample is an anchor; its positives p are all other views of its class,
    its own second view among them: the mean over i and p of -log softmax over all other views a of
    (z_i . z_a / temperature) at p.

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
