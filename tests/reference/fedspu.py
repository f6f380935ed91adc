"""FedSPU on [linear, ReLU] layers, on whole models: an entry is held, 1, or not, 0."""

import numpy as np

from tests.reference.classification import cross_entropy
from tests.reference.fjord import Model, logits
from tests.reference.gradients import gradients


def received(own: Model, sent: Model, held: Model) -> Model:
    """The personal model with the server's entries where they are held."""
    return {k: np.where(held[k] > 0, sent[k], own[k]) for k in own}


def train(own: Model, held: Model, batches, lr: float) -> Model:
    """Steps of the held entries on the loss of the whole model."""
    for x, y in batches:
        slopes = gradients(lambda p, x=x, y=y: cross_entropy(logits(p, x, 1.0), y), own)
        own = {k: v - lr * held[k] * slopes[k] for k, v in own.items()}
    return own


def server(w: Model, clients: list[tuple[int, Model, Model]]) -> Model:
    """The mean by samples of (samples, model, held) over those who hold an entry."""
    new = {}
    for k, old in w.items():
        weights = sum(samples * held[k] for samples, _, held in clients)
        total = sum(samples * held[k] * model[k] for samples, model, held in clients)
        new[k] = np.where(weights > 0, total / np.maximum(weights, 1), old)
    return new
