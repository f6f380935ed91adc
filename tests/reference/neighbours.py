"""Classification by a client's own features, one sample at a time in float64."""

import numpy as np


def own_mean(x, rows, labels, num_classes):
    """Minus the squared distance to each class's mean; -inf for a class without rows."""
    scores = np.full(num_classes, -np.inf)
    for c in set(labels):
        mean = np.mean([row for row, label in zip(rows, labels) if label == c], 0)
        scores[c] = -sum((x - mean) ** 2)
    return scores


def neighbours(x, rows, labels, num_classes, k):
    """Each class's share of the weights exp(-d^2 / K) of the k nearest rows (kNN-Per, Eq. 4)."""
    squares = [sum((x - row) ** 2) for row in rows]
    nearest = sorted(range(len(rows)), key=lambda i: squares[i])[:k]
    scores = np.zeros(num_classes)
    for i in nearest:
        scores[labels[i]] += np.exp(-squares[i] / len(x))
    return scores / scores.sum()
