"""FedRAL's aggregation, entry by entry, and its client with a linear model."""

import numpy as np

from tests.reference import linear_client
from tests.reference.classification import cross_entropy
from tests.reference.gradients import sgd_step


def is_sent(i: int, j: int, width: int, blocks: int) -> bool:
    """Returns True where entry (i, j) lies in one of `blocks` diagonal blocks."""
    side = width // blocks
    return any(
        start <= i < start + side and start <= j < start + side for start in range(0, width, side)
    )


def aggregate(
    angles: list[np.ndarray], weights: list[float], blocks: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The sum over clients of weight times matrix, each zero outside its blocks; and which entries
    anyone sent."""
    width = len(angles[0])
    total, sent = np.zeros((width, width)), np.zeros((width, width), bool)
    for angle, weight, m in zip(angles, weights, blocks):
        for i, j in np.ndindex(width, width):
            if is_sent(i, j, width, m):
                total[i, j] += weight * angle[i, j]
                sent[i, j] = True
    return total, sent


def aggregate_uniform(angles: list[np.ndarray], blocks: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The plain mean of each entry over the clients that sent it, zero where nobody did; and which
    are sent at all."""
    width = len(angles[0])
    mean, sent = np.zeros((width, width)), np.zeros((width, width), bool)
    for i, j in np.ndindex(width, width):
        values = [angle[i, j] for angle, m in zip(angles, blocks) if is_sent(i, j, width, m)]
        if values:
            mean[i, j], sent[i, j] = np.mean(values), True
    return mean, sent


def logits(params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """head(R + R A)."""
    representations = linear_client.features(params, x)
    turned = representations + representations @ params["angle"]
    return turned @ params["head_kernel"] + params["head_bias"]


def train(params, batches, lr: float, angle_lr: float) -> tuple[dict[str, np.ndarray], float]:
    """One joint SGD step per batch (x, y); returns the parameters and the mean loss before each
    step."""
    losses = []
    for x, y in batches:

        def loss(p, x=x, y=y):
            return cross_entropy(logits(p, x), y)

        losses.append(loss(params))
        of_angle = sgd_step(loss, params, angle_lr)["angle"]
        params = {**sgd_step(loss, params, lr), "angle": of_angle}
    return params, float(np.mean(losses))
