"""FD's client: a linear model, its SGD on cross-entropy plus a pull of its logits, and the class
means of those."""

import functools

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy, log_softmax, softmax
from tests.reference.gradients import descend
from tests.reference.prototype_losses import sample_prototype_mse


def soft_cross_entropy(logits, labels, targets, available) -> float:
    """Mean over samples of -sum_c softmax(target)_c log softmax(logits)_c; 0 for a sample whose
    class has no target."""
    losses = []
    for row, label in zip(logits, labels):
        distance = -np.sum(softmax(targets[label]) * log_softmax(row))
        losses.append(distance if available[label] else 0.0)
    return float(np.mean(losses))


def loss(params, x, y, targets, available, weight, regulariser) -> float:
    """Cross-entropy plus weight times the distance of the logits to those of the class."""
    outputs = linear_client.logits(params, x)
    if regulariser == "mse_logits":
        distance = sample_prototype_mse(outputs, y, [True] * len(y), targets, available)
    else:
        distance = soft_cross_entropy(outputs, y, targets, available)
    return cross_entropy(outputs, y) + weight * distance


def train(
    params, batches, lr: float, **regulariser
) -> tuple[dict[str, np.ndarray], float, dict[int, np.ndarray]]:
    """One SGD step per batch (x, y).

    Returns:
      The parameters, the mean loss before each step, and class -> mean of the logits before each
      step.
    """
    params, mean, before = descend(functools.partial(loss, **regulariser), params, batches, lr)
    seen = [linear_client.logits(p, x) for p, (x, _) in zip(before, batches)]
    labels = np.concatenate([y for _, y in batches])
    return params, mean, linear_client.class_means(np.concatenate(seen), labels)
