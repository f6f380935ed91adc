"""Convolution and pooling with their gradients, one output at a time."""

import numpy as np


def conv2d(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Stride 1, no padding. x [B, H, W, C], kernel [h, w, C, O] -> [B, H - h + 1, W - w + 1, O]."""
    h, w, _, features = kernel.shape
    out = np.zeros((x.shape[0], x.shape[1] - h + 1, x.shape[2] - w + 1, features))
    for b, i, j, o in np.ndindex(out.shape):
        out[b, i, j, o] = np.sum(x[b, i : i + h, j : j + w, :] * kernel[..., o])
    return out


def conv2d_gradients(x: np.ndarray, kernel: np.ndarray, upstream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of sum(upstream * conv2d(x, kernel)) by x and by kernel."""
    h, w = kernel.shape[:2]
    dx, dkernel = np.zeros(x.shape), np.zeros(kernel.shape)
    for b, i, j, o in np.ndindex(upstream.shape):
        dx[b, i : i + h, j : j + w, :] += upstream[b, i, j, o] * kernel[..., o]
        dkernel[..., o] += upstream[b, i, j, o] * x[b, i : i + h, j : j + w, :]
    return dx, dkernel


def max_pool_2x2(x: np.ndarray) -> np.ndarray:
    """Maximum of each 2x2 window; an odd last row or column is dropped."""
    out = np.zeros((x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]))
    for b, i, j, c in np.ndindex(out.shape):
        out[b, i, j, c] = x[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].max()
    return out


def max_pool_2x2_gradient(x: np.ndarray, upstream: np.ndarray) -> np.ndarray:
    """Gradient of sum(upstream * max_pool_2x2(x)), for windows with one largest entry."""
    dx = np.zeros(x.shape)
    for b, i, j, c in np.ndindex(upstream.shape):
        window = x[b, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c]
        di, dj = np.unravel_index(window.argmax(), (2, 2))
        dx[b, 2 * i + di, 2 * j + dj, c] += upstream[b, i, j, c]
    return dx
