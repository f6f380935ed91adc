"""FD's client: a linear model, its SGD on cross-entropy plus a pull of its logits, and the class
means of those."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step
from tests.reference.prototype_losses import sample_prototype_mse


def soft_cross_entropy(logits, labels, targets, available) -> float:
    """Mean over samples of -sum_c softmax(target)_c log softmax(logits)_c; 0 for a sample whose
    class has no target."""
    losses = []
    for row, label in zip(logits, labels):
        p = np.exp(targets[label]) / np.exp(targets[label]).sum()
        log_q = row - np.log(np.exp(row).sum())
        losses.append(-np.sum(p * log_q) if available[label] else 0.0)
    return float(np.mean(losses))


def loss(params, x, y, targets, available, weight, regulariser) -> float:
    """Cross-entropy plus weight times the distance of the logits to those of the class."""
    outputs = linear_client.logits(params, x)
    if regulariser == "mse_logits":
        distance = sample_prototype_mse(outputs, y, [True] * len(y), targets, available)
    else:
        distance = soft_cross_entropy(outputs, y, targets, available)
    return cross_entropy(outputs, y, [True] * len(y)) + weight * distance


def train(
    params, batches, lr: float, **regulariser
) -> tuple[dict[str, np.ndarray], float, dict[int, np.ndarray]]:
    """One SGD step per batch (x, y).

    Returns:
      The parameters, the mean loss before each step, and class -> mean of the logits before each
      step.
    """
    losses, seen, labels = [], [], []
    for x, y in batches:
        losses.append(loss(params, x, y, **regulariser))
        seen.extend(linear_client.logits(params, x))
        labels.extend(y)
        params = sgd_step(lambda p, x=x, y=y: loss(p, x, y, **regulariser), params, lr)
    return (
        params,
        float(np.mean(losses)),
        linear_client.class_means(np.array(seen), np.array(labels)),
    )
