"""FedSSA's header fusion (Eqs. 4 and 5) and its server (Eq. 3)."""

import math

import numpy as np


def stabilisation(t: int, mu: float, stable_rounds: int, decay: str = "cosine") -> float:
    """mu_t."""
    if t >= stable_rounds:
        return 0.0
    ways = {
        "cosine": math.cos(math.pi * t / (2 * stable_rounds)),
        "linear": 1 - t / stable_rounds,
        "step": 1.0,
    }
    return mu * ways[decay]


def growth(mu: float, stable_rounds: int, decay: str) -> float:
    """Computes the length of a row of length 1 after it has fused with itself in every round."""
    length = 1.0
    for t in range(1, stable_rounds + 1):
        length = length + stabilisation(t, mu, stable_rounds, decay) * length
    return length


def stored_mean(rounds: list[dict[int, dict[int, np.ndarray]]]) -> dict[int, np.ndarray]:
    """Class -> mean over its owners of the newest row of each, after rounds of uploads client ->
    class -> row."""
    newest: dict[int, dict[int, np.ndarray]] = {}
    for uploads in rounds:
        newest |= {i: sent for i, sent in uploads.items() if sent}
    owners: dict[int, list[np.ndarray]] = {}
    for sent in newest.values():
        for s, row in sent.items():
            owners.setdefault(s, []).append(np.asarray(row, np.float64))
    return {s: sum(rows) / len(rows) for s, rows in owners.items()}


def fuse(local: np.ndarray, rows: np.ndarray, classes: set[int], mu_t: float) -> np.ndarray:
    """The local header [C, K + 1] with the global rows taken in for the client's own classes."""
    fused = np.array(local, np.float64)
    for s in classes:
        fused[s] = rows[s] + mu_t * local[s]
    return fused
