"""Compression by singular value decomposition."""

import numpy as np


def kept_rank(matrix: np.ndarray, energy: float) -> int:
    """The smallest k whose first k squared singular values are a share `energy` of them all."""
    squares = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False) ** 2
    k = 0
    while squares[:k].sum() < energy * squares.sum():
        k += 1
    return k


def compress(array: np.ndarray, energy: float) -> tuple[np.ndarray, int]:
    """What arrives of an array [..., O], and how many numbers are sent for it."""
    array = np.asarray(array, np.float64)
    if array.ndim < 2:
        return array, array.size
    matrix = array.reshape(-1, array.shape[-1])
    k = kept_rank(matrix, energy)
    numbers = k * (matrix.shape[0] + matrix.shape[1] + 1)
    if numbers >= matrix.size:
        return array, array.size
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    return ((u[:, :k] * s[:k]) @ v[:k]).reshape(array.shape), numbers
