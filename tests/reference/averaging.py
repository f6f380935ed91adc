"""Weighted means over clients."""

import numpy as np


def weighted_mean(values: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """sum_i weights_i values_i / sum_i weights_i over the clients given."""
    return sum(w * np.asarray(v, np.float64) for v, w in zip(values, weights)) / sum(weights)


def mean_by_class(
    uploads: list[dict[int, np.ndarray]], weights: list[dict[int, float]] | None = None
) -> dict:
    """Class -> mean of the prototypes uploaded for it; `uploads` has one {class: prototype} per
    client."""
    means = {}
    for c in sorted({c for upload in uploads for c in upload}):
        owners = [i for i, upload in enumerate(uploads) if c in upload]
        shares = [1.0 if weights is None else weights[i][c] for i in owners]
        means[c] = weighted_mean([uploads[i][c] for i in owners], shares)
    return means
