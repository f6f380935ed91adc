"""Gradients by central differences: no derivation to get wrong."""

from collections.abc import Callable

import numpy as np

STEP = 1e-6


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


def sgd_step(
    loss: Callable[[dict], float], params: dict[str, np.ndarray], lr: float
) -> dict[str, np.ndarray]:
    """One step of gradient descent on a flat dict of arrays."""
    return {
        name: value - lr * numerical_gradient(lambda v, name=name: loss({**params, name: v}), value)
        for name, value in params.items()
    }
