"""FedClassAvg's client: supervised contrast of two views, cross-entropy of the first, and a
proximal term."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import descend


def supervised_contrastive(first, second, labels, mask, temperature: float) -> float:
    """Mean over anchors of the mean over their positives of -log softmax over all other views; 0
    without samples."""
    views = [
        (np.asarray(z[i], np.float64), labels[i])
        for z in (first, second)
        for i in range(len(labels))
        if mask[i]
    ]
    losses = []
    for i, (anchor, label) in enumerate(views):
        similarity = {a: anchor @ z / temperature for a, (z, _) in enumerate(views) if a != i}
        largest = max(similarity.values())
        log_total = largest + np.log(sum(np.exp(s - largest) for s in similarity.values()))
        losses.append(
            np.mean([log_total - similarity[p] for p in similarity if views[p][1] == label])
        )
    return float(np.mean(losses)) if losses else 0.0


def proximity(head: dict[str, np.ndarray], start: dict[str, np.ndarray]) -> float:
    """Sum over tensors of the mean square of their distance."""
    return float(sum(np.mean((head[name] - start[name]) ** 2) for name in head))


def loss(params, start, x1, x2, y, scale: float, temperature: float, mu: float) -> float:
    """Computes the loss of `linear_client`'s model; `start` holds the head's parameters at the
    beginning of the pass."""
    f1, f2 = linear_client.features(params, x1), linear_client.features(params, x2)
    contrast = supervised_contrastive(f1, f2, y, [True] * len(y), temperature)
    error = cross_entropy(np.maximum(f1, 0) @ params["head_kernel"] + params["head_bias"], y)
    head = {name: value for name, value in params.items() if name.startswith("head")}
    return scale * contrast + error + mu / 2 * proximity(head, {name: start[name] for name in head})


def local_pass(params, batches, lr: float, **options) -> tuple[dict[str, np.ndarray], float]:
    """One SGD step per batch (x1, x2, y); returns the parameters and the mean loss before each
    step."""
    return descend(lambda p, *batch: loss(p, params, *batch, **options), params, batches, lr)[:2]
