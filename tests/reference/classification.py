"""Softmax cross-entropy over the samples that count."""

import numpy as np


def cross_entropy(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """Mean over unmasked samples of -log softmax(logits)[label]; 0 without any."""
    losses = []
    for row, label, real in zip(logits, labels, mask):
        if real:
            exps = np.exp(row - row.max())
            losses.append(-np.log(exps[label] / exps.sum()))
    return float(np.mean(losses)) if losses else 0.0
