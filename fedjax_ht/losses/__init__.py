"""Losses as small pure functions; every one respects a sample mask, so that padding changes nothing."""

from fedjax_ht.losses.classification import cross_entropy, masked_mean
from fedjax_ht.losses.contrastive import adaptive_margin, margin_contrastive
from fedjax_ht.losses.prototype import class_prototype_distance, sample_prototype_mse

__all__ = [
    "adaptive_margin",
    "class_prototype_distance",
    "cross_entropy",
    "margin_contrastive",
    "masked_mean",
    "sample_prototype_mse",
]
