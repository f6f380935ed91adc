"""FedL2G: a client's loss, and the gradient of its quiz's loss in the guiding vectors."""

import numpy as np

from tests.reference import linear_client
from tests.reference.gradients import sgd_step

STEP = 1e-3  # wider than the inner differences, whose rounding it would magnify


def outputs(params, x: np.ndarray, guide: str) -> np.ndarray:
    """Logits or features."""
    return (linear_client.logits if guide == "logits" else linear_client.features)(params, x)


def guided_loss(params, vectors: np.ndarray, x: np.ndarray, y: np.ndarray, guide: str) -> float:
    """Cross-entropy plus the mean square, over samples and entries, to the classes' vectors."""
    distance = np.mean((outputs(params, x, guide) - vectors[y]) ** 2)
    return linear_client.loss(params, x, y) + float(distance)


def step(params, vectors, batch, lr: float, guide: str):
    """One step of SGD."""
    return sgd_step(lambda p: guided_loss(p, vectors, *batch, guide), params, lr)


def vector_gradient(params, vectors: np.ndarray, study, quiz, lr: float, guide: str) -> np.ndarray:
    """Differences of the quiz's loss after a step on the study batch, entry by entry of V."""
    gradient = np.zeros_like(vectors)
    for i in np.ndindex(vectors.shape):
        losses = []
        for sign in (1, -1):
            moved = vectors.copy()
            moved[i] += sign * STEP
            losses.append(linear_client.loss(step(params, moved, study, lr, guide), *quiz))
        gradient[i] = (losses[0] - losses[1]) / (2 * STEP)
    return gradient


def server_update(vectors: np.ndarray, uploads: list[dict[int, np.ndarray]], lr: float):
    """One step along the uniform means by class, together at most 100 long."""
    gradient = np.zeros_like(vectors)
    for c in range(len(vectors)):
        rows = [upload[c] for upload in uploads if c in upload]
        if rows:
            gradient[c] = np.mean(rows, axis=0)
    length = np.linalg.norm(gradient)
    return vectors - lr * gradient * min(1.0, 100 / max(length, 1e-30))
