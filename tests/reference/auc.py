"""The area under the ROC curve, by counting pairs of samples."""

import itertools

import numpy as np


def one_class(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """The share of pairs of a sample of the class and another one in which the first has the higher
    score, where equal scores count half."""
    wins = 0.0
    pairs = list(itertools.product(scores[is_positive], scores[~is_positive]))
    for positive, negative in pairs:
        wins += 1.0 if positive > negative else 0.5 * (positive == negative)
    return wins / len(pairs)


def macro(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean of `one_class` over the classes that the labels have; NaN where these are fewer than
    two. Scores [N, C], labels [N]."""
    classes = np.unique(labels)
    if len(classes) < 2:
        return float("nan")
    return float(np.mean([one_class(scores[:, c], labels == c) for c in classes]))
