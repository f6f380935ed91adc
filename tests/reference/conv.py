"""Convolution and pooling with their gradients, one output at a time."""

import numpy as np


def conv2d(
    x: np.ndarray, kernel: np.ndarray, stride: int = 1, padding: int = 0, groups: int = 1
) -> np.ndarray:
    """x [B, H, W, C], kernel [h, w, C / groups, O] -> [B, (H + 2 padding - h) // stride + 1, ...,
    O]."""
    x, channels = _pad(x, padding), x.shape[-1] // groups
    h, w, _, features = kernel.shape
    out = np.zeros(
        (x.shape[0], (x.shape[1] - h) // stride + 1, (x.shape[2] - w) // stride + 1, features)
    )
    for b, i, j, o in np.ndindex(out.shape):
        seen = _seen(i, j, o, stride, h, w, channels, features // groups)
        out[b, i, j, o] = np.sum(x[b][seen] * kernel[..., o])
    return out


def conv2d_gradients(
    x: np.ndarray,
    kernel: np.ndarray,
    upstream: np.ndarray,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of sum(upstream * conv2d(x, kernel)) by x and by kernel."""
    x, channels = _pad(x, padding), x.shape[-1] // groups
    h, w, _, features = kernel.shape
    dx, dkernel = np.zeros(x.shape), np.zeros(kernel.shape)
    for b, i, j, o in np.ndindex(upstream.shape):
        seen = _seen(i, j, o, stride, h, w, channels, features // groups)
        dx[b][seen] += upstream[b, i, j, o] * kernel[..., o]
        dkernel[..., o] += upstream[b, i, j, o] * x[b][seen]
    height, width = x.shape[1:3]
    return dx[:, padding : height - padding, padding : width - padding], dkernel


def _pad(x, padding):
    return np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def _seen(i, j, o, stride, h, w, channels, features_per_group):
    """Yields the inputs that output (i, j) of feature o reads, in one padded image."""
    first = o // features_per_group * channels
    top, left = i * stride, j * stride
    return slice(top, top + h), slice(left, left + w), slice(first, first + channels)


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


def conv_transpose2d(
    x: np.ndarray, kernel: np.ndarray, stride: int = 1, padding: int = 0
) -> np.ndarray:
    """x [B, H, W, C], kernel [h, w, C, O]: every pixel adds its multiple of the kernel; the edges
    are then cut off."""
    (batch, height, width, _), (h, w, _, features) = x.shape, kernel.shape
    out = np.zeros((batch, (height - 1) * stride + h, (width - 1) * stride + w, features))
    for b, i, j in np.ndindex(batch, height, width):
        out[b, i * stride : i * stride + h, j * stride : j * stride + w] += np.einsum(
            "c,hwco->hwo", x[b, i, j], kernel
        )
    return out[:, padding : out.shape[1] - padding, padding : out.shape[2] - padding]
