"""Distances of a client's features to the global prototypes, the pull of FedProto and FedTGP."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_ht.losses.classification import masked_mean
from fedjax_ht.ops import safe_norm
from fedjax_ht.ops.arrays import Array


def class_prototype_distance(
    features: Float[Array, "B K"],
    labels: Int[Array, " B"],
    mask: Bool[Array, " B"],
    prototypes: Float[Array, "C K"],
    available: Bool[Array, " C"],
) -> Float[Array, ""]:
    """Computes the distance of a batch's class means to global prototypes (FedTGP Eq. 11).

    It is Euclidean (FedProto's Eq. 7 has such a distance, too). A mini-batch estimates the paper's
    loss between class prototypes: the average is over the classes that occur in the batch and have
    a global prototype.

    Args:
      features: float [B, K].
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      prototypes: float [C, K]; rows without a prototype are never read.
      available: bool [C], True where a global prototype exists.

    Returns:
      Scalar; 0 where no class qualifies.
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

    This is the form of the released code of FedProto and FedTGP; the mean is over samples and
    features. A sample whose class has no prototype counts with zero loss. Arguments as of
    `class_prototype_distance`.
    """
    known = available[labels][:, None]
    # Without a prototype the target is the feature itself, as a constant.
    target = jnp.where(known, prototypes[labels], jax.lax.stop_gradient(features))
    return masked_mean(jnp.mean((features - target) ** 2, -1), mask)
