"""Distillation on public samples: FedMD's and DS-FL's clients and servers, on linear models."""

import numpy as np

from tests.reference import linear_client
from tests.reference.gradients import sgd_step


def softmax(scores: np.ndarray) -> np.ndarray:
    """scores [P, C] -> rows of sum 1."""
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def absolute_error(scores: np.ndarray, targets: np.ndarray) -> float:
    """Mean over samples and classes."""
    return float(np.abs(scores - targets).mean())


def squared_error(scores: np.ndarray, targets: np.ndarray) -> float:
    """Mean over samples and classes."""
    return float(((scores - targets) ** 2).mean())


def divergence(scores: np.ndarray, targets: np.ndarray) -> float:
    """Mean over samples of KL(targets || softmax(scores))."""
    return float((targets * (np.log(targets) - np.log(softmax(scores)))).sum(-1).mean())


def digest(params, x: np.ndarray, targets: np.ndarray, loss, lr: float, size: int):
    """An epoch of SGD towards targets, in batches in order, of which the last may be short.

    Args:
      params: of a linear client.
      x, targets: public samples [P, D] and their targets [P, C].
      loss: (scores, targets) -> scalar.
      lr, size: learning rate and batch size.
    """
    for start in range(0, len(x), size):
        rows = slice(start, start + size)

        def of(p, rows=rows):
            return loss(linear_client.logits(p, x[rows]), targets[rows])

        params = sgd_step(of, params, lr)
    return params


def sharpened(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Entropy reduction averaging of probabilities [clients, P, C]."""
    return softmax(probabilities.mean(0) / temperature)
