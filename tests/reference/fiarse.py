"""FIARSE: masks by magnitude, a client's steps on the masked model, and the server's means."""

import numpy as np

from tests.reference.one_architecture import Model, gradient


def threshold(w: Model, share: float) -> float:
    """The floor(share W)-th largest magnitude."""
    sizes = sorted((abs(x) for v in w.values() for x in v.ravel()), reverse=True)
    return sizes[int(np.floor(share * len(sizes))) - 1]


def thresholds(w: Model, share: float, by_layer: bool) -> dict[str, float]:
    """The threshold of each array: that of the whole model, or of its layer, whose arrays are named
    LAYER_kernel and LAYER_bias."""
    if not by_layer:
        return dict.fromkeys(w, threshold(w, share))
    layers = {k: {n: v for n, v in w.items() if n.split("_")[0] == k.split("_")[0]} for k in w}
    return {k: threshold(layer, share) for k, layer in layers.items()}


def mask(w: Model, theta: dict[str, float]) -> Model:
    return {k: np.abs(v) >= theta[k] for k, v in w.items()}


def client(
    w: Model, share: float, batches, lr: float, biased: bool, by_layer: bool = False
) -> tuple[Model, Model]:
    """Returns w_i, of which only the entries of the first mask mean anything, and that mask."""
    theta = thresholds(w, share, by_layer)
    first = mask(w, theta)
    new = {k: v * first[k] for k, v in w.items()}
    for x, y in batches:
        held = mask(new, theta)
        g = gradient({k: v * held[k] for k, v in new.items()}, x, y)
        for k, v in new.items():
            size = np.abs(v)
            factor = 1 + 2 * theta[k] * size / (size + theta[k]) ** 2 if biased else 1
            new[k] = v - lr * g[k] * held[k] * factor
    return new, first


def server(w: Model, clients: list[tuple[Model, Model]], rate: float) -> Model:
    """Each entry moves by the mean change of the clients that hold it."""
    new = {k: np.array(v) for k, v in w.items()}
    for k, v in w.items():
        for i in np.ndindex(v.shape):
            changes = [v[i] - trained[k][i] for trained, held in clients if held[k][i]]
            if changes:
                new[k][i] = v[i] - rate * np.mean(changes)
    return new
