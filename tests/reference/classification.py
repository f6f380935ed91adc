"""Softmax, and what is computed with it."""

import numpy as np


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(scores))


def kl(teacher: np.ndarray, student: np.ndarray) -> float:
    """Mean over samples of KL(softmax teacher || softmax student); logits [..., C]."""
    p, q = log_softmax(teacher), log_softmax(student)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def cross_entropy(logits: np.ndarray, labels: np.ndarray, mask=None) -> float:
    """Mean over unmasked samples of -log softmax(logits)[label]; 0 without any."""
    losses = []
    for i, (row, label) in enumerate(zip(logits, labels)):
        if mask is None or mask[i]:
            losses.append(-log_softmax(row)[label])
    return float(np.mean(losses)) if losses else 0.0
