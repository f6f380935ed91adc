"""FedDBE's client with linear extractor and head, by SGD."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step


def train(params, bias, batches, lr: float, kappa: float, momentum: float, target=None) -> tuple:
    """Returns the parameters, the bias, and the running mean of the features.

    Without a target (rbar) bias and distance have no part.
    """
    running = np.zeros(len(bias))

    def parts(values, x):
        rows = linear_client.features(values, x)
        return rows, (1 - momentum) * running + momentum * rows.mean(0)

    def loss(values, x, y):
        rows, mean = parts(values, x)
        if target is not None:
            rows = rows + values["bias"]
        scores = rows @ values["head_kernel"] + values["head_bias"]
        value = cross_entropy(scores, y)
        if target is not None:
            value += kappa * np.mean((mean - target) ** 2) / 2
        return value

    values = params | {"bias": bias}
    for x, y in batches:
        stepped = sgd_step(lambda v, x=x, y=y: loss(v, x, y), values, lr)
        _, running = parts(values, x)
        values = stepped
    bias = values.pop("bias")
    return values, bias, running
