"""Accuracy over clients, in the different definitions of papers, and by class."""

from typing import NamedTuple

import numpy as np


class AccuracySummary(NamedTuple):
    """Accuracies in [0, 1] over the clients that have samples; NaN if none has.

    Attributes:
      mean: unweighted mean over clients.
      weighted: share of all samples classified correctly, i.e. the mean weighted by numbers of
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


def macro_f1(by_class: np.ndarray) -> np.ndarray:
    """Computes each client's macro F1, as scikit-learn's `f1_score(average="macro")`.

    It is the mean F1 over the classes that occur in its test samples or its predictions.

    Args:
      by_class: int [num_clients, 3, C], see `core.prediction_counts.Scores`.

    Returns:
      float64 [num_clients], NaN for a client without samples.
    """
    samples, predicted, correct = np.moveaxis(by_class, 1, 0)
    total = samples + predicted
    f1 = np.where(total > 0, 2 * correct / np.maximum(total, 1), 0)
    num_classes = np.sum(total > 0, 1)
    return np.where(num_classes > 0, np.sum(f1, 1) / np.maximum(num_classes, 1), np.nan)


def class_accuracy(by_class: np.ndarray) -> np.ndarray:
    """Computes the accuracy on all clients' test samples of each class, float64 [C].

    It is NaN for a class without samples. The argument is as for `macro_f1`.
    """
    samples, correct = np.sum(by_class[:, [0, 2]], axis=0)
    return np.where(samples > 0, correct / np.maximum(samples, 1), np.nan)
