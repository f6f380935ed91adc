"""FedRoD's client with linear extractor and heads, by SGD."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step


def balanced(params, x, y, counts, gamma: float) -> float:
    """The cross-entropy over a client's own classes, each logit plus gamma log n_c."""
    own = [c for c, n in enumerate(counts) if n]
    scores = linear_client.logits(params, x)[:, own] + gamma * np.log([counts[c] for c in own])
    return cross_entropy(scores, [own.index(c) for c in y])


def train(params, own, batches, lr: float, gamma: float) -> tuple[dict, dict]:
    """Returns the model and the personal head; both steps of a batch are from one point."""
    labels = np.concatenate([y for _, y in batches])
    counts = np.bincount(labels, minlength=len(params["head_bias"]))
    for x, y in batches:
        rows, generic = linear_client.features(params, x), linear_client.logits(params, x)

        def personal(head, rows=rows, generic=generic, y=y):
            scores = generic + rows @ head["kernel"] + head["bias"]
            return cross_entropy(scores, y)

        own = sgd_step(personal, own, lr)
        params = sgd_step(lambda p, x=x, y=y: balanced(p, x, y, counts, gamma), params, lr)
    return params, own
