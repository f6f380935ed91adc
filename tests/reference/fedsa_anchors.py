"""FedSA's client with anchors, with linear extractor and head, by SGD."""

import functools

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import descend


def gap(rows: list) -> float:
    """The mean over rows of the distance to the nearest other; 0 for fewer than two."""
    if len(rows) < 2:
        return 0.0
    distances = []
    for i, row in enumerate(rows):
        distances.append(min(np.linalg.norm(row - r) for j, r in enumerate(rows) if j != i))
    return float(np.mean(distances))


def loss(params, x, y, *, anchors, margin_gap, weight, margin, calibration) -> float:
    classes = range(len(anchors))
    rows = linear_client.features(params, x)
    value = cross_entropy(linear_client.logits(params, x), y)
    on_anchors = anchors @ params["head_kernel"] + params["head_bias"]
    value += calibration * cross_entropy(on_anchors, list(classes))
    value += weight * np.mean([(row - anchors[c]) ** 2 for row, c in zip(rows, y)])
    scores = np.array(
        [
            [-(np.linalg.norm(row - anchors[c]) + margin_gap * (c == label)) for c in classes]
            for row, label in zip(rows, y)
        ]
    )
    return value + margin * cross_entropy(scores, y)


def train(params, batches, lr: float, own: dict, anchors, **weights) -> tuple[dict, dict]:
    """Trains a client whose last class means are `own`; returns its parameters and the class means of
    the features that its steps saw."""
    given = weights | {"anchors": anchors, "margin_gap": max(gap(list(own.values())), gap(anchors))}
    params, _, before = descend(functools.partial(loss, **given), params, batches, lr)
    rows = [linear_client.features(p, x) for p, (x, _) in zip(before, batches)]
    labels = np.concatenate([y for _, y in batches])
    return params, linear_client.class_means(np.concatenate(rows), labels)


def server_update(anchors, means: dict, uploads: list[dict], ema: float) -> tuple:
    """Returns the anchors and the class means, {class: mean}; what nobody sent stays."""
    means, anchors = dict(means), np.array(anchors)
    for c in range(len(anchors)):
        sent = [upload[c] for upload in uploads if c in upload]
        if sent:
            means[c] = np.mean(sent, axis=0)
            anchors[c] = ema * anchors[c] + (1 - ema) * means[c]
    return anchors, means
