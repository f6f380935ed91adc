"""Slices of a model's parameters, entry by entry. Trees are flat dicts: path -> array, path ->
names of the axes."""

import itertools
import math

import numpy as np


def plan(widths, rate, mode, round):
    """group -> the channels of a slice."""
    start = {"static": 0, "rolling": round}[mode]
    return {
        g: [(start + i) % width for i in range(math.ceil(rate * width))]
        for g, width in widths.items()
    }


def channels(shape, names, plan):
    """Per axis the global indices that a slice holds."""
    return [plan.get(name, range(size)) for size, name in zip(shape, names)]


def extract(params, axes, plan):
    return {k: x[np.ix_(*channels(x.shape, axes[k], plan))] for k, x in params.items()}


def mask(params, axes, plan):
    """1 where an entry is in the slice, else 0."""
    out = {k: np.zeros(x.shape, np.float32) for k, x in params.items()}
    for k, x in out.items():
        x[np.ix_(*channels(x.shape, axes[k], plan))] = 1
    return out


def scatter_mean(params, axes, uploads):
    """Weighted mean over holders; uploads are (slice, weight, bool per class, plan)."""
    out = {}
    for k, old in params.items():
        total, weights = np.zeros(old.shape), np.zeros(old.shape)
        for values, weight, classes, plan in uploads:
            held = channels(old.shape, axes[k], plan)
            for place in itertools.product(*(range(len(indices)) for indices in held)):
                entry = tuple(indices[i] for indices, i in zip(held, place))
                label = {name: i for name, i in zip(axes[k], entry)}.get("classes")
                if weight and (label is None or classes[label]):
                    total[entry] += weight * values[k][place]
                    weights[entry] += weight
        out[k] = np.where(weights > 0, total / np.where(weights > 0, weights, 1), old)
    return out
