"""FedORGP's losses: cosines to own prototypes, and to those of other classes."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.fedtgp_server import global_prototypes
from tests.reference.gradients import descend, descend_on_uploads


def cosine(a, b) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def train(params, batches, lr: float, lambda_c: float, prototypes=None) -> tuple[dict, float]:
    """A client's SGD; returns its parameters and the mean loss before each step."""

    def loss(values, x, y):
        value = cross_entropy(linear_client.logits(values, x), y)
        if prototypes is not None:
            rows = linear_client.features(values, x)
            value += lambda_c * np.mean([1 - cosine(r, prototypes[c]) for r, c in zip(rows, y)])
        return value

    return descend(loss, params, batches, lr)[:2]


def server_update(trained, uploads, orders, batch_size, lr, lambda_s, gamma) -> tuple[dict, float]:
    """SGD over the uploads; arguments as of `descend_on_uploads`."""

    def loss(params, prototypes, classes):
        targets = global_prototypes(params)
        own = [1 - cosine(p, targets[c]) for p, c in zip(prototypes, classes)]
        other = [
            abs(cosine(p, target))
            for p, c in zip(prototypes, classes)
            for k, target in enumerate(targets)
            if k != c
        ]
        return lambda_s * np.mean(own) + gamma * np.mean(other)

    return descend_on_uploads(loss, trained, uploads, orders, batch_size, lr)
