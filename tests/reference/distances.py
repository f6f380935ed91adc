"""Euclidean distances, one pair at a time."""

import numpy as np


def pairwise_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[M, K], [N, K] -> [M, N]."""
    return np.array([[np.linalg.norm(p - q) for q in b] for p in a])
