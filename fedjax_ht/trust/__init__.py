"""Attacks on federated training, defences against them, and differential privacy and its cost."""

from fedjax_ht.trust.attacks import Attack
from fedjax_ht.trust.defences import (
    Defence,
    geometric_median,
    median,
    multi_krum,
    norm_bound,
    trimmed_mean,
)
from fedjax_ht.trust.privacy import Privacy

__all__ = [
    "Attack",
    "Defence",
    "Privacy",
    "geometric_median",
    "median",
    "multi_krum",
    "norm_bound",
    "trimmed_mean",
]
