"""Gradients by central differences: no derivation to get wrong."""

from collections.abc import Callable, Iterable

import numpy as np

STEP = 1e-6
Params = dict[str, np.ndarray]


def numerical_gradient(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """df/dx of a scalar function, entry by entry; about 1e-9 exact where f is smooth."""
    x = np.array(x, np.float64)
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += STEP
        down[i] -= STEP
        gradient[i] = (f(up) - f(down)) / (2 * STEP)
    return gradient


def gradients(loss: Callable[[dict], float], params: Params) -> Params:
    """Those of a loss of a flat dict of arrays."""
    return {
        name: numerical_gradient(lambda v, name=name: loss({**params, name: v}), value)
        for name, value in params.items()
    }


def sgd_step(loss: Callable[[dict], float], params: Params, lr: float) -> Params:
    """One step of gradient descent."""
    slopes = gradients(loss, params)
    return {name: value - lr * slopes[name] for name, value in params.items()}


def descend(
    loss: Callable[..., float], params: Params, batches: Iterable[tuple], lr: float
) -> tuple[Params, float, list[Params]]:
    """One step for each batch, on loss(params, *batch).

    Returns:
      The parameters, the mean loss before each step, and the parameters before each step.
    """
    losses, before = [], []
    for batch in batches:
        losses.append(loss(params, *batch))
        before.append(params)
        params = sgd_step(lambda p, batch=batch: loss(p, *batch), params, lr)
    return params, float(np.mean(losses)), before


def descend_on_uploads(
    loss: Callable[[dict, np.ndarray, list[int]], float],
    params: Params,
    uploads: list[dict[int, np.ndarray]],
    orders: list[np.ndarray],
    batch_size: int,
    lr: float,
) -> tuple[Params, float]:
    """SGD over clients' prototypes.

    Args:
      loss: of the parameters, a batch of prototypes and their classes.
      params: a flat dict of arrays.
      uploads: {class: prototype} per client; the rows trained on are those of client 0 by class,
        then client 1, ...
      orders: for each epoch the order in which those rows are visited.
      batch_size, lr: of the SGD; an epoch's last batch is smaller.

    Returns:
      The parameters, and the mean loss over the last epoch's batches.
    """
    rows = [(upload[c], c) for upload in uploads for c in sorted(upload)]
    for order in orders:
        batches = []
        for start in range(0, len(order), batch_size):
            prototypes, classes = zip(*(rows[i] for i in order[start : start + batch_size]))
            batches.append((np.array(prototypes, np.float64), list(classes)))
        params, mean, _ = descend(loss, params, batches, lr)
    return params, mean


class Adam:
    """Adam with its usual constants; keeps moments by name."""

    def __init__(self, rate: float):
        self.rate, self.count, self.first, self.second = rate, 0, {}, {}

    def step(self, params: dict, slopes: dict) -> dict:
        self.count += 1
        out = {}
        for name, g in slopes.items():
            self.first[name] = 0.9 * self.first.get(name, 0) + 0.1 * g
            self.second[name] = 0.999 * self.second.get(name, 0) + 0.001 * g**2
            first, second = (
                self.first[name] / (1 - 0.9**self.count),
                self.second[name] / (1 - 0.999**self.count),
            )
            out[name] = params[name] - self.rate * first / (np.sqrt(second) + 1e-8)
        return out
