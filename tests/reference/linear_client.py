"""A client whose extractor and head are both linear, and its SGD on FedProto's and FedTGP's
loss."""

import functools

import numpy as np

from tests.reference.classification import cross_entropy
from tests.reference.gradients import descend
from tests.reference.prototype_losses import class_prototype_distance, sample_prototype_mse


def features(params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """x [B, D] -> [B, K]."""
    return x @ params["base_kernel"] + params["base_bias"]


def logits(params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """x [B, D] -> [B, C]."""
    return features(params, x) @ params["head_kernel"] + params["head_bias"]


def loss(params, x, y, prototypes=None, available=None, weight=0.0, variant="paper") -> float:
    """Cross-entropy plus weight times the distance to the global prototypes."""
    value = cross_entropy(logits(params, x), y)
    if prototypes is not None:
        distance = class_prototype_distance if variant == "paper" else sample_prototype_mse
        value += weight * distance(features(params, x), y, [True] * len(y), prototypes, available)
    return value


def train(params, batches, lr: float, **regulariser) -> tuple[dict[str, np.ndarray], float, list]:
    """One SGD step per batch (x, y).

    Returns:
      The parameters, the mean loss before each step, and per batch (features as seen by its step,
      labels).
    """
    params, mean, before = descend(functools.partial(loss, **regulariser), params, batches, lr)
    return params, mean, [(features(p, x), y) for p, (x, y) in zip(before, batches)]


def class_means(rows: np.ndarray, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Class -> mean of its rows."""
    return {
        int(c): np.mean([r for r, y in zip(rows, labels) if y == c], axis=0)
        for c in np.unique(labels)
    }
