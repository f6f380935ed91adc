"""FedSSA's header fusion (Eqs. 4 and 5); its server is `averaging.mean_by_class`."""

import math

import numpy as np


def stabilisation(t: int, mu: float, stable_rounds: int) -> float:
    """mu_t."""
    return mu * math.cos(math.pi * t / (2 * stable_rounds)) if t <= stable_rounds else 0.0


def fuse(local: np.ndarray, rows: np.ndarray, own: set[int], mu_t: float) -> np.ndarray:
    """The local header [C, K + 1] with the global rows taken in for the client's own classes."""
    fused = np.array(local, np.float64)
    for s in own:
        fused[s] = rows[s] + mu_t * local[s]
    return fused
