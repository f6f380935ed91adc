"""FedCP's client with linear extractor and heads, by SGD.

Parameters are a flat dict: those of the model, and "policy_kernel", "policy_bias", "policy_scale"
and "policy_shift".
"""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import descend

EPSILON, BANDWIDTHS = 1e-5, (10, 15, 20, 50)


def shares(params, rows: np.ndarray, context: np.ndarray, noise) -> np.ndarray:
    """The shares of each feature, [B, 2, K]."""
    given = rows * context / np.linalg.norm(context)
    hidden = given @ params["policy_kernel"] + params["policy_bias"]
    normal = hidden - hidden.mean(1, keepdims=True)
    normal = normal / np.sqrt(hidden.var(1, keepdims=True) + EPSILON)
    scores = np.maximum(normal * params["policy_scale"] + params["policy_shift"], 0)
    exps = np.exp(scores.reshape(len(rows), 2, -1) + noise)
    return exps / exps.sum(1, keepdims=True)


def outputs(params, shared_head, rows, context, noise) -> np.ndarray:
    split = shares(params, rows, context, noise)
    own = (rows * split[:, 0]) @ params["head_kernel"] + params["head_bias"]
    return own + (rows * split[:, 1]) @ shared_head["head_kernel"] + shared_head["head_bias"]


def discrepancy(u: np.ndarray, s: np.ndarray) -> float:
    """MMD, one pair after another."""
    total = 0.0
    for width in BANDWIDTHS:
        for i in range(len(u)):
            for j in range(len(u)):
                for a, b, sign in ((u[i], u[j], 1), (s[i], s[j], 1), (u[i], s[j], -2)):
                    total += sign * np.exp(-((a - b) ** 2).sum() / (2 * width))
    return total / len(u) ** 2


def train(params, received, context, batches, *, lr: float, lam: float, noise) -> dict:
    """Returns the parameters after training; `received` is the server's model, and `noise` a
    function of a batch's size."""

    def loss(values, x, y):
        rows = linear_client.features(values, x)
        out = outputs(values, received, rows, context, noise(len(y)))
        before = linear_client.features(received, x)
        return cross_entropy(out, y) + lam * discrepancy(rows, before)

    return descend(loss, params, batches, lr)[0]
