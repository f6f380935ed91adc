"""Normalisation with explicit loops over channels."""

import numpy as np


def batch_norm(x, mask, scale, bias, mean, var, epsilon=1e-5, momentum=0.1):
    """torch's BatchNorm in training mode over the samples of `mask`: x [B, ..., C] -> (outputs,
    running mean, var)."""
    out, new_mean, new_var = np.zeros(x.shape), mean.copy(), var.copy()
    for c in range(x.shape[-1]):
        values = x[mask][..., c]
        biased = values.var()
        out[..., c] = (x[..., c] - values.mean()) / np.sqrt(biased + epsilon) * scale[c] + bias[c]
        new_mean[c] += momentum * (values.mean() - mean[c])
        new_var[c] += momentum * (values.var(ddof=1) - var[c])
    return out, new_mean, new_var


def group_norm(x, size, scale, bias, epsilon=1e-5):
    """Each sample's groups of `size` neighbouring channels, over all its pixels."""
    out = np.zeros(x.shape)
    for b in range(len(x)):
        for start in range(0, x.shape[-1], size):
            part = x[b, ..., start : start + size]
            out[b, ..., start : start + size] = (part - part.mean()) / np.sqrt(part.var() + epsilon)
    return out * scale + bias


def batch_norm_gradients(x, mask, scale, bias, dy, dmean, dvar, epsilon=1e-5, step=1e-5):
    """Computes the gradients of sum(dy * y) + sum(dmean * mean) + sum(dvar * var) by x, scale and
    bias by central differences."""

    def total(x, scale, bias):
        mean = x[mask].reshape(-1, x.shape[-1]).mean(0) if mask.any() else np.zeros(x.shape[-1])
        var = x[mask].reshape(-1, x.shape[-1]).var(0) if mask.any() else np.zeros(x.shape[-1])
        y = (x - mean) / np.sqrt(var + epsilon) * scale + bias
        return (dy * y).sum() + (dmean * mean).sum() + (dvar * var).sum()

    def gradient(values, at):
        out = np.zeros(values.shape)
        for i in np.ndindex(values.shape):
            moved = [values.copy(), values.copy()]
            moved[0][i] += step
            moved[1][i] -= step
            out[i] = (at(moved[0]) - at(moved[1])) / (2 * step)
        return out

    return (
        gradient(x, lambda v: total(v, scale, bias)),
        gradient(scale, lambda v: total(x, v, bias)),
        gradient(bias, lambda v: total(x, scale, v)),
    )
