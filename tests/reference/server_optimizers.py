"""Server optimisers of Hsu et al. (2019) and Reddi et al. (2021), entry by entry."""

import math

import numpy as np


class Entry:
    """One parameter of the server and what its optimiser keeps."""

    def __init__(self, w: float, tau: float, v0: float | None = None):
        self.w, self.m, self.t = w, 0.0, 0
        self.v = tau**2 if v0 is None else v0

    def fedavgm(self, delta: float, lr: float, momentum: float) -> None:
        if delta != 0:
            self.m = momentum * self.m + delta
            self.w += lr * self.m

    def adaptive(self, name, delta, lr, b1, b2, tau, bias_correction=False) -> None:
        if delta == 0:
            return
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * delta
        if name == "fedadagrad":
            self.v += delta**2
        elif name == "fedadam":
            self.v = b2 * self.v + (1 - b2) * delta**2
        else:
            self.v -= (1 - b2) * delta**2 * np.sign(self.v - delta**2)
        if bias_correction:
            lr *= math.sqrt(1 - b2**self.t) / (1 - b1**self.t)
        self.w += lr * self.m / (math.sqrt(self.v) + tau)


def play(name: str, w: np.ndarray, deltas, v0=None, **numbers) -> np.ndarray:
    """The parameters after rounds whose mean upload is further than the server's by each delta."""
    entries = [Entry(float(x), numbers.get("tau", 0.0), v0) for x in w.ravel()]
    for delta in deltas:
        for entry, d in zip(entries, delta.ravel()):
            if name == "fedavgm":
                entry.fedavgm(float(d), **numbers)
            else:
                entry.adaptive(name, float(d), **numbers)
    return np.array([entry.w for entry in entries]).reshape(w.shape)
