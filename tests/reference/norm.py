"""Normalisation with explicit loops over channels."""

import numpy as np


def batch_norm(x, mask, scale, bias, mean, var, epsilon=1e-5, momentum=0.1):
    """torch's BatchNorm in training mode over the samples of `mask`: x [B, ..., C] -> (outputs, running mean, var)."""
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
