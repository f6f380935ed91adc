"""A round of FedAvg (McMahan et al. 2017, algorithm 1) on a CNN whose weights are laid out as
PyTorch's are.

Weights are a list: of each layer its weight, [out, in, k, k] or [out, in], and its bias [out].
"""

import numpy as np

from tests.reference.averaging import weighted_mean
from tests.reference.conv import conv2d, conv2d_gradients, max_pool_2x2, max_pool_2x2_gradient


def gradients(
    weights: list[np.ndarray], x: np.ndarray, y: np.ndarray, pooled: list[bool]
) -> list[np.ndarray]:
    """Gradients of the mean cross entropy of x [B, H, W, C], y [B].

    Args:
      pooled: of each convolution, whether a maximum pooling by 2 follows its ReLU. Behind them a
        map is flattened [C, H, W], and linear layers follow, with a ReLU between any two.
    """
    below, above = [], []  # each layer's input, and its output before the ReLU
    for k, pools in enumerate(pooled):
        below.append(x)
        above.append(conv2d(x, weights[2 * k].transpose(2, 3, 1, 0)) + weights[2 * k + 1])
        x = np.maximum(above[-1], 0)
        x = max_pool_2x2(x) if pools else x
    batch, height, width, channels = x.shape
    x = x.transpose(0, 3, 1, 2).reshape(batch, -1)
    for k in range(len(pooled), len(weights) // 2):
        below.append(x)
        above.append(x @ weights[2 * k].T + weights[2 * k + 1])
        x = np.maximum(above[-1], 0)

    shares = np.exp(above[-1] - above[-1].max(1, keepdims=True))
    upstream = (shares / shares.sum(1, keepdims=True) - np.eye(shares.shape[1])[y]) / batch
    slopes = []
    for k in reversed(range(len(pooled), len(below))):
        slopes = [upstream.T @ below[k], upstream.sum(0), *slopes]
        upstream = upstream @ weights[2 * k]
        if k > len(pooled):
            upstream = upstream * (above[k - 1] > 0)
    upstream = upstream.reshape(batch, channels, height, width).transpose(0, 2, 3, 1)
    for k in reversed(range(len(pooled))):
        if pooled[k]:
            upstream = max_pool_2x2_gradient(np.maximum(above[k], 0), upstream)
        upstream = upstream * (above[k] > 0)
        kernel = weights[2 * k].transpose(2, 3, 1, 0)
        by_bias = upstream.sum((0, 1, 2))
        upstream, by_kernel = conv2d_gradients(below[k], kernel, upstream)
        slopes = [by_kernel.transpose(3, 2, 0, 1), by_bias, *slopes]
    return slopes


def fedavg_round(
    weights: list[np.ndarray],
    clients: list[tuple[np.ndarray, np.ndarray]],
    pooled: list[bool],
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> list[np.ndarray]:
    """The mean, by samples, of the models of all clients (x, y), each trained by SGD on its batches
    in stored order."""
    models = []
    for x, y in clients:
        local = [np.asarray(w, np.float64) for w in weights]
        for _ in range(epochs):
            for i in range(0, len(y), batch_size):
                steps = gradients(local, x[i : i + batch_size], y[i : i + batch_size], pooled)
                local = [w - learning_rate * g for w, g in zip(local, steps)]
        models.append(local)
    sizes = [len(y) for _, y in clients]
    return [weighted_mean([model[k] for model in models], sizes) for k in range(len(weights))]
