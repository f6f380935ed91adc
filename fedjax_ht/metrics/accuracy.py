"""Accuracy over clients, in the definitions that papers mix up."""

from typing import NamedTuple

import numpy as np


class AccuracySummary(NamedTuple):
    """Accuracies in [0, 1] over the clients that have samples; NaN if none has.

    Attributes:
      mean: unweighted mean over clients.
      weighted: share of all samples classified correctly, which weighs clients by their number of
        samples.
      std: population standard deviation over clients.
      worst: mean over the worst tenth of the clients, at least one.
    """

    mean: float
    weighted: float
    std: float
    worst: float


def summarise(accuracy: np.ndarray, counts: np.ndarray) -> AccuracySummary:
    """Summarises clients' accuracies.

    Args:
      accuracy: float [num_clients], NaN for a client without samples.
      counts: int [num_clients], samples.
    """
    scored = np.asarray(counts) > 0
    if not scored.any():
        nan = float("nan")
        return AccuracySummary(mean=nan, weighted=nan, std=nan, worst=nan)
    values = np.asarray(accuracy, np.float64)[scored]
    weights = np.asarray(counts, np.float64)[scored]
    worst = np.sort(values)[: max(1, len(values) // 10)]
    return AccuracySummary(
        mean=float(values.mean()),
        weighted=float(values @ weights / weights.sum()),
        std=float(values.std()),
        worst=float(worst.mean()),
    )
