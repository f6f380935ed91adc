"""Losses as pure functions; each takes a mask of the real samples, so that padding is inert."""

from fedjax_ht.losses.arcface import arcface_loss, cosines
from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.losses.contrastive import adaptive_margin, margin_contrastive, supervised_contrastive
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
from fedjax_ht.losses.mmd import kernel_means, mmd_loss
from fedjax_ht.losses.prototype import class_prototype_distance, sample_prototype_mse

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
