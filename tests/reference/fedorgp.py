"""FedORGP's losses: cosines to own prototypes, and to those of other classes."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.fedtgp_server import global_prototypes
from tests.reference.gradients import sgd_step


def cosine(a, b) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def train(params, batches, lr: float, lambda_c: float, prototypes=None) -> tuple[dict, float]:
    """A client's SGD; returns its parameters and the mean loss before each step."""

    def loss(values, x, y):
        value = cross_entropy(linear_client.logits(values, x), y, [True] * len(y))
        if prototypes is not None:
            rows = linear_client.features(values, x)
            value += lambda_c * np.mean([1 - cosine(r, prototypes[c]) for r, c in zip(rows, y)])
        return value

    losses = []
    for x, y in batches:
        losses.append(loss(params, x, y))
        params = sgd_step(lambda p, x=x, y=y: loss(p, x, y), params, lr)
    return params, float(np.mean(losses))


def server_update(trained, uploads, orders, batch_size, lr, lambda_s, gamma) -> tuple[dict, float]:
    """SGD over the uploads of clients, {class: prototype} each; arguments as of
    `fedtgp_server.server_update`."""
    rows = [(upload[c], c) for upload in uploads for c in sorted(upload)]

    def loss(params, batch):
        targets = global_prototypes(params)
        own = [1 - cosine(p, targets[c]) for p, c in batch]
        other = [
            abs(cosine(p, target)) for p, c in batch for k, target in enumerate(targets) if k != c
        ]
        return lambda_s * np.mean(own) + gamma * np.mean(other)

    losses = []
    for order in orders:
        losses = []
        for start in range(0, len(order), batch_size):
            batch = [rows[i] for i in order[start : start + batch_size]]
            losses.append(loss(trained, batch))
            trained = sgd_step(lambda p, batch=batch: loss(p, batch), trained, lr)
    return trained, float(np.mean(losses))
