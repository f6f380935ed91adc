"""Distillation on public samples: FedMD's and DS-FL's clients and servers, on linear models."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import softmax
from tests.reference.gradients import descend, sgd_step


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

    def of(p, rows):
        return loss(linear_client.logits(p, x[rows]), targets[rows])

    batches = [(slice(start, start + size),) for start in range(0, len(x), size)]
    return descend(of, params, batches, lr)[0]


def sharpened(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Entropy reduction averaging of probabilities [clients, P, C]."""
    return softmax(probabilities.mean(0) / temperature)


def mixed(coefficients: np.ndarray, scores: np.ndarray, present: list[int]) -> np.ndarray:
    """KT-pFL's targets of each client, [N, P, C]: the row's coefficients of the clients present,
    among whom those of the others are divided."""
    targets = np.zeros_like(scores)
    for n, row in enumerate(coefficients):
        others = sum(c for m, c in enumerate(row) if m not in present)
        for m in present:
            targets[n] += (row[m] + others / len(present)) * scores[m]
    return targets


def knowledge_loss(coefficients, scores, present, temperature: float, rho: float) -> float:
    """Sum over the clients present of the divergence from their targets, and the pull to 1/N."""
    targets = mixed(coefficients, scores, present)
    total = 0.0
    for n in present:
        total += divergence(scores[n] / temperature, softmax(targets[n] / temperature))
        total += rho * ((coefficients[n] - 1 / len(coefficients)) ** 2).sum()
    return total


def alignment(kernel: np.ndarray, other: np.ndarray) -> float:
    """CKA of kernels [P, P], by the centring matrix."""
    middle = np.eye(len(kernel)) - 1 / len(kernel)
    a, b = middle @ kernel @ middle, middle @ other @ middle
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def aligned_step(params, batch, x: np.ndarray, kernel: np.ndarray, weight: float, lr: float):
    """FedHeNN's step of SGD on a batch, x being the public samples and kernel their mean one."""

    def loss(p):
        rows = linear_client.features(p, x)
        return linear_client.loss(p, *batch) + weight * (1 - alignment(rows @ rows.T, kernel))

    return sgd_step(loss, params, lr)
