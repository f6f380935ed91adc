"""DepthFL on [linear, ReLU] stages, each with a linear classifier behind it."""

import numpy as np

from tests.reference.classification import cross_entropy, softmax
from tests.reference.gradients import gradients

Model = dict[str, np.ndarray]


def logits(params: Model, x: np.ndarray, depth: int) -> list[np.ndarray]:
    """The logits of each classifier; "k1" and "b1" are stage 1, "hk1" and "hb1" its classifier."""
    scores = []
    for i in range(1, depth + 1):
        x = np.maximum(x @ params[f"k{i}"] + params[f"b{i}"], 0)
        scores.append(x @ params[f"hk{i}"] + params[f"hb{i}"])
    return scores


def loss(params: Model, x, y, depth: int, teachers, weight: float, inclusive: bool) -> float:
    """Cross-entropies and divergences from fixed teachers, without FedDyn's terms."""
    scores, value = logits(params, x, depth), 0.0
    for i in range(depth):
        if inclusive and i != depth - 1:
            continue
        value += cross_entropy(scores[i], y)
        for j in range(depth):
            if j != i:
                target = softmax(teachers[j]) + 1e-7
                distance = target * (np.log(target) - np.log(softmax(scores[i])))
                value += weight * distance.sum(1).mean() / (depth - 1)
    return value


def client(w: Model, s: Model, batches, lr: float, depth: int, **options) -> tuple[Model, Model]:
    """Returns w_k and the new s_k.

    options: weight of self-distillation, alpha (None without FedDyn's terms), inclusive.
    """
    alpha, new, rest = options["alpha"], dict(w), (options["weight"], options["inclusive"])
    for x, y in batches:
        batch = x, y, depth, logits(new, x, depth)
        step = gradients(lambda p, batch=batch: loss(p, *batch, *rest), new)
        if alpha is not None:
            step = {k: step[k] + alpha * (new[k] - w[k]) - s[k] for k in step}
        new = {k: v - lr * step[k] for k, v in new.items()}
    return new, {k: s[k] - (alpha or 0) * (new[k] - w[k]) for k in w}


def server(w: Model, h: Model, uploads: list[Model], clients: int, alpha: float | None):
    """Returns the new w and h; `clients` is how many there are in all."""
    new, drift = dict(w), dict(h)
    for k in w:
        held = [u[k] for u in uploads if k in u]
        if held:
            mean = np.mean(held, axis=0)
            new[k] = mean
            if alpha is not None:
                drift[k] = h[k] - alpha * len(held) * (mean - w[k]) / clients
                new[k] = mean - drift[k] / alpha
    return new, drift
