"""Clients of the baselines of one architecture, with linear extractor and head, by SGD.

A model is a flat dict of arrays, as in `linear_client`. Batches are (x, y).
"""

from collections.abc import Callable

import numpy as np

from tests.reference import linear_client
from tests.reference.gradients import descend, gradients

Model = dict[str, np.ndarray]


def gradient(params: Model, x: np.ndarray, y: np.ndarray) -> Model:
    """Gradient of the cross-entropy by central differences."""
    return gradients(lambda p: linear_client.loss(p, x, y), params)


def stepped(w: Model, batches, lr: float, slope: Callable) -> Model:
    """w_k <- w_k - lr slope(k, g_k, w_k) for each batch, of every array k."""
    for x, y in batches:
        g = gradient(w, x, y)
        w = {k: v - lr * slope(k, g[k], v) for k, v in w.items()}
    return w


def fedprox(w: Model, batches, lr: float, mu: float) -> Model:
    """w_i <- w_i - lr (g + mu (w_i - w))."""
    return stepped(w, batches, lr, lambda k, g, v: g + mu * (v - w[k]))


def perfedavg(w: Model, batches, lr: float, alpha: float, hessian: bool) -> Model:
    """Each step takes two or three parts of its batch, of every second or third sample."""
    new, parts = dict(w), 3 if hessian else 2
    for x, y in batches:
        first, second, third = (gradient_or_zero(x[i::parts], y[i::parts]) for i in range(3))
        g1 = first(new)
        d = second({k: new[k] - alpha * g1[k] for k in new})
        if hessian:  # along d, by a difference of gradients in float64
            ahead, back = ({k: new[k] + s * d[k] for k in new} for s in (1e-3, -1e-3))
            ends = third(ahead), third(back)
            d = {k: d[k] - alpha * (ends[0][k] - ends[1][k]) / 2e-3 for k in new}
        new = {k: new[k] - lr * d[k] for k in new}
    return new


def gradient_or_zero(x: np.ndarray, y: np.ndarray):
    """Returns (model) -> the gradient of these samples, zero without any."""
    return lambda w: gradient(w, x, y) if len(y) else {k: 0 * v for k, v in w.items()}


def scaffold(w: Model, c: Model, c_own: Model, batches, lr: float) -> tuple[Model, Model]:
    """Option II: steps along g + c - c_i; returns w_i - w and c_i' - c_i."""
    new = stepped(w, batches, lr, lambda k, g, v: g + c[k] - c_own[k])
    steps = len(batches)
    c_new = {k: c_own[k] - c[k] + (w[k] - new[k]) / (steps * lr) for k in new}
    return {k: new[k] - w[k] for k in w}, {k: c_new[k] - c_own[k] for k in w}


def feddyn(w: Model, s: Model, batches, lr: float, alpha: float) -> tuple[Model, Model]:
    """Descends on CE - <w_i, s_i> + alpha / 2 |w_i - w|^2; returns w_i and the new s_i."""
    new = stepped(w, batches, lr, lambda k, g, v: g - s[k] + alpha * (v - w[k]))
    return new, {k: s[k] - alpha * (new[k] - w[k]) for k in w}


def feddyn_server(w: Model, h: Model, uploads: list[Model], clients: int, alpha: float):
    """Returns the new w and h of a server with so many clients."""
    h = {k: h[k] - alpha / clients * sum(u[k] - w[k] for u in uploads) for k in w}
    return {k: np.mean([u[k] for u in uploads], axis=0) - h[k] / alpha for k in w}, h


def ditto(v: Model, w: Model, batches, lr: float, lam: float) -> Model:
    """v <- v - lr (g(v) + lam (v - w)), w being the model as received."""
    return stepped(v, batches, lr, lambda k, g, x: g + lam * (x - w[k]))


def pfedme(
    w: Model, batches, lr: float, *, lam: float, personal_lr: float, steps: int
) -> tuple[Model, Model]:
    """Returns theta, which goes on from batch to batch, and w_i, each from w."""
    theta = w
    for x, y in batches:
        for _ in range(steps):
            g = gradient(theta, x, y)
            theta = {k: theta[k] - personal_lr * (g[k] + lam * (theta[k] - w[k])) for k in w}
        w = {k: w[k] - lr * lam * (w[k] - theta[k]) for k in w}
    return theta, w


def attentive_mean(models: dict[int, Model], i: int, alpha: float, sigma: float) -> Model:
    """FedAMP's u_i, of the models of all clients."""
    shares = {}
    for j, w in models.items():
        distance = sum(float(np.sum((w[k] - models[i][k]) ** 2)) for k in w)
        shares[j] = alpha / sigma * np.exp(-distance / sigma)
    shares[i] = 1 - sum(share for j, share in shares.items() if j != i)
    return {k: sum(shares[j] * w[k] for j, w in models.items()) for k in models[i]}


def mixed(v: Model, w: Model, share: float) -> Model:
    """share v + (1 - share) w."""
    return {k: share * v[k] + (1 - share) * w[k] for k in v}


def apfl(
    v: Model, w: Model, share: float, batches, lr: float, every: str = "step"
) -> tuple[Model, Model, float]:
    """All three take their step from the same point; the share is clipped to [0, 1], and with
    every="round" moves at the first batch alone."""
    for number, (x, y) in enumerate(batches):
        g, g_w = gradient(mixed(v, w, share), x, y), gradient(w, x, y)
        slope = sum(float(np.sum((v[k] - w[k]) * g[k])) for k in v)
        v, w = (
            {k: v[k] - lr * share * g[k] for k in v},
            {k: w[k] - lr * g_w[k] for k in w},
        )
        if every == "step" or number == 0:
            share = float(np.clip(share - lr * slope, 0, 1))
    return v, w, share


def of_part(params: Model, part: str, batches, lr: float) -> Model:
    """Trains "head" or "base" alone."""
    return stepped(params, batches, lr, lambda k, g, v: g * k.startswith(part))


def contrast(z: np.ndarray, near: np.ndarray, far: np.ndarray, tau: float) -> float:
    """MOON's mean over samples of -log(e^g / (e^g + e^p)), by cosines over tau."""

    def cosine(a, b):
        return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))

    values = []
    for row, row_near, row_far in zip(z, near, far):
        g, p = np.exp(cosine(row, row_near) / tau), np.exp(cosine(row, row_far) / tau)
        values.append(-np.log(g / (g + p)))
    return float(np.mean(values))


def moon(w: Model, last: Model, batches, lr: float, mu: float, tau: float) -> Model:
    """Descends on the cross-entropy and mu times the contrast."""

    def loss(params, x, y):
        near, far = (linear_client.features(model, x) for model in (w, last))
        z = linear_client.features(params, x)
        return linear_client.loss(params, x, y) + mu * contrast(z, near, far, tau)

    return descend(loss, w, batches, lr)[0]


def head_mixture(kept: Model, received: Model, weights: Model) -> Model:
    """The received extractor, and kept + (received - kept) weights in the head, by entry."""
    return {
        k: kept[k] + (received[k] - kept[k]) * weights[k] if k in weights else received[k]
        for k in kept
    }


def fedala_weights(kept: Model, received: Model, weights: Model, batches, lr: float) -> Model:
    """Each step descends on the mixture's cross-entropy, and is clipped to [0, 1]."""
    for x, y in batches:
        g = gradient(head_mixture(kept, received, weights), x, y)
        weights = {
            k: np.clip(a - lr * g[k] * (received[k] - kept[k]), 0, 1) for k, a in weights.items()
        }
    return weights
