"""Clients of pFedAFM, pFedMoE and pFedES with linear extractors and heads (see `linear_client`), by
SGD with momentum and weight decay.

A shared extractor is {"base_kernel", "base_bias"}, of a batch x [B, D]. pFedES' is {"first",
"first_bias", "second", "second_bias"}, kernels [3, 3, C, O], of images [B, H, W, C].
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.reference.classification import cross_entropy
from tests.reference.conv import conv2d
from tests.reference.gradients import numerical_gradient
from tests.reference.linear_client import features, logits

Params = dict[str, np.ndarray]


class Sgd(NamedTuple):
    """v <- momentum v + g + decay p, p <- p - rate v, from v = 0."""

    rate: float
    momentum: float
    decay: float


def descend(losses: list[Callable[[dict], float]], parts: dict, rules: dict, bounded=()) -> dict:
    """Takes a step for each loss, of all parts from the same point.

    Args:
      losses: the batches' losses of {part: parameters}.
      parts: name -> its parameters.
      rules: name -> its `Sgd`; parts without one stay.
      bounded: names of the parts that are clipped to [0, 1] behind each step.
    """
    velocity = {name: {k: np.zeros_like(v) for k, v in parts[name].items()} for name in rules}
    for loss in losses:
        new = {}
        for name, rule in rules.items():
            new[name] = {}
            for k, value in parts[name].items():

                def at(v, name=name, k=k, loss=loss, parts=parts):
                    return loss({**parts, name: {**parts[name], k: v}})

                gradient = numerical_gradient(at, value) + rule.decay * value
                velocity[name][k] = rule.momentum * velocity[name][k] + gradient
                new[name][k] = value - rule.rate * velocity[name][k]
                if name in bounded:
                    new[name][k] = np.clip(new[name][k], 0, 1)
        parts = {**parts, **new}
    return parts


def _head(private: Params, rows: np.ndarray) -> np.ndarray:
    return rows @ private["head_kernel"] + private["head_bias"]


def afm_logits(parts: dict, x: np.ndarray) -> np.ndarray:
    """h(alpha f(x) + (1 - alpha) g(x)), entry by entry."""
    alpha = parts["alpha"]["alpha"]
    rows = alpha * features(parts["own"], x) + (1 - alpha) * features(parts["shared"], x)
    return _head(parts["own"], rows)


def afm_client(private, shared, alpha, batches, rule: Sgd, alpha_rate: float):
    """Trains own model and alpha beside g as received, then g through the head; returns the
    three."""
    parts = {"own": private, "shared": shared, "alpha": {"alpha": alpha}}
    rules = {"own": rule, "alpha": rule._replace(rate=alpha_rate * rule.rate)}
    losses = [lambda p, x=x, y=y: cross_entropy(afm_logits(p, x), y) for x, y in batches]
    trained = descend(losses, parts, rules, bounded=("alpha",))
    of_shared = [
        lambda p, x=x, y=y: cross_entropy(_head(p["own"], features(p["shared"], x)), y)
        for x, y in batches
    ]
    sent = descend(of_shared, trained, {"shared": rule})["shared"]
    return trained["own"], trained["alpha"]["alpha"], sent


def gate_weights(gate: Params, x: np.ndarray) -> np.ndarray:
    """A linear layer, a layer norm, a sigmoid, a linear layer to 2, a softmax: [B, D] -> [B, 2]."""
    hidden = x @ gate["in_kernel"] + gate["in_bias"]
    middle, variance = hidden.mean(1, keepdims=True), hidden.var(1, keepdims=True)
    hidden = (hidden - middle) / np.sqrt(variance + 1e-5) * gate["scale"] + gate["shift"]
    scores = 1 / (1 + np.exp(-hidden)) @ gate["out_kernel"] + gate["out_bias"]
    shares = np.exp(scores)
    return shares / shares.sum(1, keepdims=True)


def moe_logits(parts: dict, x: np.ndarray) -> np.ndarray:
    """h(w_1 g(x) + w_2 f(x)), sample by sample."""
    w = gate_weights(parts["gate"], x)
    rows = w[:, :1] * features(parts["shared"], x) + w[:, 1:] * features(parts["own"], x)
    return _head(parts["own"], rows)


def moe_client(private, shared, gate, batches, rule: Sgd, gate_rate: float) -> dict:
    """Trains all three together."""
    rules = dict.fromkeys(("own", "shared"), rule)
    rules["gate"] = rule._replace(rate=gate_rate * rule.rate)
    losses = [lambda p, x=x, y=y: cross_entropy(moe_logits(p, x), y) for x, y in batches]
    return descend(losses, {"own": private, "shared": shared, "gate": gate}, rules)


def redrawn(extractor: Params, x: np.ndarray) -> np.ndarray:
    """pFedES' G(x), images of the shape of x."""
    hidden = np.maximum(conv2d(x, extractor["first"], padding=1) + extractor["first_bias"], 0)
    return np.maximum(conv2d(hidden, extractor["second"], padding=1) + extractor["second_bias"], 0)


def es_client(private, extractor, batches, rule: Sgd, mu: float, epochs: int):
    """Trains F for an epoch of the batches (images, labels), then G for `epochs`; returns both."""

    def error(p, images, y):
        return cross_entropy(logits(p["own"], images.reshape(len(images), -1)), y)

    def own_loss(p, x, y):
        return (1 - mu) * error(p, x, y) + mu * error(p, redrawn(extractor, x), y)

    losses = [lambda p, x=x, y=y: own_loss(p, x, y) for x, y in batches]
    private = descend(losses, {"own": private}, {"own": rule})["own"]
    of_extractor = [
        lambda p, x=x, y=y: error({"own": private}, redrawn(p["extractor"], x), y)
        for x, y in batches
    ]
    parts = descend(of_extractor * epochs, {"extractor": extractor}, {"extractor": rule})
    return private, parts["extractor"]
