"""Losses as small pure functions; every one respects a sample mask, so that padding changes nothing."""

from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.losses.contrastive import adaptive_margin, margin_contrastive, supervised_contrastive
from fedjax_ht.losses.distillation import kl_divergence
from fedjax_ht.losses.generator import diversity_loss
from fedjax_ht.losses.prototype import class_prototype_distance, sample_prototype_mse

__all__ = [
    "adaptive_margin",
    "class_prototype_distance",
    "cross_entropy",
    "diversity_loss",
    "kl_divergence",
    "margin_contrastive",
    "masked_mean",
    "sample_prototype_mse",
    "supervised_contrastive",
]
