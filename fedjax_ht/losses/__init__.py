"""Losses as pure functions; those of samples take a mask of the real ones.

Padding does not change values. Its entries must be finite where gradients are taken, as a zero
gradient times NaN is NaN.
"""

from fedjax_ht.losses.classification import arcface_loss, cosines, cross_entropy, masked_mean
from fedjax_ht.losses.distillation import (
    disagreement,
    diversity_loss,
    embedding_excess,
    image_diversity,
    kl_divergence,
    moment_distance,
    transferability,
    weighted_cross_entropy,
    weighted_kl,
)
from fedjax_ht.losses.features import (
    adaptive_margin,
    class_prototype_distance,
    kernel_means,
    margin_contrastive,
    mmd_loss,
    sample_prototype_mse,
    supervised_contrastive,
)

__all__ = [
    "adaptive_margin",
    "arcface_loss",
    "class_prototype_distance",
    "cosines",
    "cross_entropy",
    "disagreement",
    "diversity_loss",
    "embedding_excess",
    "image_diversity",
    "kernel_means",
    "kl_divergence",
    "margin_contrastive",
    "masked_mean",
    "mmd_loss",
    "moment_distance",
    "sample_prototype_mse",
    "supervised_contrastive",
    "transferability",
    "weighted_cross_entropy",
    "weighted_kl",
]
