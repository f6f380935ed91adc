"""FedPAC: a client's moments, and the shares of the heads by trying every set of clients."""

import itertools

import numpy as np


def moments(features: np.ndarray, labels: np.ndarray, num_classes: int):
    """p_c mu_c of every class, and V = (1 / n) sum_c (p_c E|phi|^2_c - p_c^2 |mu_c|^2)."""
    n, h, variance = len(labels), np.zeros((num_classes, features.shape[1])), 0.0
    for c in set(labels.tolist()):
        rows = features[labels == c]
        p, mean = len(rows) / n, rows.mean(0)
        h[c] = p * mean
        variance += (p * np.mean(np.sum(rows**2, 1)) - p**2 * mean @ mean) / n
    return h, variance


def centroids(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """sum_i n_i^c m_i^c / sum_i n_i^c of every class c that a client has, of means [N, C, K] and
    counts [N, C]."""
    return np.einsum("nc,nck->ck", counts, means) / np.maximum(counts.sum(0), 1)[:, None]


def shares(h: list[np.ndarray], variances: list[float], i: int, scaled: bool = True) -> np.ndarray:
    """Minimises a^T (diag(V) + D_i) a over the simplex, D_i[j, l] = <h_i - h_j, h_i - h_l>: of the
    optima over the clients of each set, which solve a linear system, the lowest that is no share
    below 0; shares below 0.001 are 0, and what is left sums to 1 where `scaled`."""
    differences = np.array([(h[i] - row).ravel() for row in h])
    matrix = np.diag(variances) + differences @ differences.T
    best, lowest = None, np.inf
    for size in range(1, len(h) + 1):
        for chosen in itertools.combinations(range(len(h)), size):
            part = matrix[np.ix_(chosen, chosen)]
            system = np.block([[2 * part, np.ones((size, 1))], [np.ones((1, size)), 0]])
            a = np.linalg.solve(system, np.r_[np.zeros(size), 1])[:size]
            value = a @ part @ a
            if (a >= 0).all() and value < lowest:
                best, lowest = np.zeros(len(h)), value
                best[list(chosen)] = a
    best = np.where(best >= 1e-3, best, 0)
    return best / best.sum() if scaled else best
