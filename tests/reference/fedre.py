"""FedRE's server: SGD of a linear head on mixtures with soft labels."""

import numpy as np

from tests.reference.classification import log_softmax
from tests.reference.gradients import descend


def soft_loss(head, mixtures: np.ndarray, labels: np.ndarray) -> float:
    """Sum, and no mean, over the pairs of -sum_c y_c log softmax(head(r))_c."""
    total = 0.0
    for mixture, label in zip(mixtures, labels):
        logits = mixture @ head["kernel"] + head["bias"]
        total -= float(label @ log_softmax(logits))
    return total


def server_update(head, mixtures: np.ndarray, labels: np.ndarray, batches, lr: float):
    """A step for each batch of rows."""
    return descend(soft_loss, head, [(mixtures[rows], labels[rows]) for rows in batches], lr)[0]
