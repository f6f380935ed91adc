"""Accuracy over clients, in the definitions that papers mix up."""

from typing import NamedTuple

import numpy as np


class AccuracySummary(NamedTuple):
    """All in [0, 1], over the clients that have samples; NaN if none has.

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
    """accuracy float [num_clients] (NaN without samples), counts int [num_clients]."""
    has = np.asarray(counts) > 0
    if not has.any():
        return AccuracySummary(*[float("nan")] * 4)
    values, weights = np.asarray(accuracy, np.float64)[has], np.asarray(counts, np.float64)[has]
    worst = np.sort(values)[: max(1, len(values) // 10)]
    return AccuracySummary(
        float(values.mean()),
        float(values @ weights / weights.sum()),
        float(values.std()),
        float(worst.mean()),
    )
