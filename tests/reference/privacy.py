"""Differential privacy in float64, one client, sample or order after another."""

import math

import numpy as np

from tests.reference.classification import softmax


def gaussian_delta(epsilon: float, noise: float) -> float:
    """The least delta of one sum of sensitivity 1 with noise N(0, noise^2) (Balle and Wang, ICML
    2018, Eq. 6)."""

    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    a, b = 1 / (2 * noise), epsilon * noise
    return phi(a - b) - math.exp(epsilon) * phi(-a - b)


def poisson_divergence(order: int, noise: float, rate: float) -> float:
    """Renyi's, of a sum to which one record adds 1 with probability `rate` (Mironov et al., 2019,
    section 3.3)."""
    total = 0.0
    for k in range(order + 1):
        total += (
            math.comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp((k * k - k) / (2 * noise**2))
        )
    return math.log(total) / (order - 1)


def from_divergences(orders, divergences, delta: float) -> float:
    """The least epsilon (Canonne et al., 2020, Proposition 12)."""
    epsilons = [
        r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a, r in zip(orders, divergences)
        if math.isfinite(r)
    ]
    return max(0.0, min(epsilons))


def clipped(arrays, clip: float) -> list[np.ndarray]:
    """Arrays as one vector of norm at most `clip`."""
    arrays = [np.asarray(x, np.float64) for x in arrays]
    norm = math.sqrt(sum(float(np.sum(x**2)) for x in arrays))
    return [x * min(1.0, clip / norm) if norm else x for x in arrays]


def softmax_gradients(kernel, x, labels) -> list[np.ndarray]:
    """Computes each sample's gradient of the cross-entropy by the kernel [D, C]; x [n, D]."""
    gradients = []
    for row, label in zip(np.asarray(x, np.float64), labels):
        logits = row @ np.asarray(kernel, np.float64)
        p = softmax(logits)
        p[label] -= 1
        gradients.append(np.outer(row, p))
    return gradients
