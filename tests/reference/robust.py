"""Robust aggregation of vectors [n, d] in float64, one client after another."""

import numpy as np


def rms(x) -> float:
    x = np.asarray(x, np.float64)
    return float(np.sqrt(np.mean(x**2))) if x.size else 0.0


def coordinate_median(x) -> np.ndarray:
    return np.array([np.median(column) for column in np.asarray(x, np.float64).T])


def trimmed_mean(x, share: float) -> np.ndarray:
    cut = int(share * len(x) + 1e-9)
    return np.array(
        [np.sort(column)[cut : len(x) - cut].mean() for column in np.asarray(x, np.float64).T]
    )


def geometric_median(x, steps: int = 20_000) -> np.ndarray:
    """The point with the least sum of distances."""
    x = np.asarray(x, np.float64)
    centre = x.mean(0)
    for _ in range(steps):
        weights = np.array([1 / max(np.linalg.norm(row - centre), 1e-12) for row in x])
        centre = (weights[:, None] * x).sum(0) / weights.sum()
    return centre


def multi_krum(x, share: float) -> list[int]:
    """Lists the clients that multi-Krum keeps."""
    x, n = np.asarray(x, np.float64), len(x)
    out = int(np.ceil(share * n - 1e-9))
    scores = []
    for i in range(n):
        distances = sorted(float(np.sum((x[i] - x[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(distances[: max(n - out - 2, 1)]))
    return sorted(np.argsort(scores, kind="stable")[: n - out].tolist())


def lower_median(values) -> float:
    values = sorted(values)
    return values[(len(values) - 1) // 2]


def norm_bound(x, bound: float, centre) -> np.ndarray:
    """`centre` is a function of vectors whose lengths are bounded already."""
    x = np.array(x, np.float64)
    usual = lower_median([rms(row) for row in x])
    x = np.array([row * min(1, bound * usual / rms(row)) for row in x])
    c = centre(x)
    apart = lower_median([rms(row - c) for row in x])
    return np.array(
        [c + (row - c) * min(1, bound * apart / max(rms(row - c), 1e-300)) for row in x]
    )
