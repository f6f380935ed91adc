"""Compression by singular value decomposition."""

import numpy as np


def kept_rank(matrices: np.ndarray, energy: float) -> int:
    """The smallest k whose first k squared singular values, of all matrices [S, M, N], are a share
    `energy` of all."""
    squares = sum(
        np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False) ** 2 for matrix in matrices
    )
    k = 0
    while squares[:k].sum() < energy * squares.sum():
        k += 1
    return k


def compress(array: np.ndarray, energy: float, form: str = "paper") -> tuple[np.ndarray, int]:
    """Returns the array [..., O] that arrives, and how many numbers are sent for it."""
    array = np.asarray(array, np.float64)
    if array.ndim < 2:
        return array, array.size
    if form == "released" and array.ndim == 4:
        matrices = np.stack([array[:, :, i, o] for i, o in np.ndindex(array.shape[2:])])
    else:
        matrices = array.reshape(1, -1, array.shape[-1])
    count, height, width = matrices.shape
    k = kept_rank(matrices, energy)
    numbers = count * k * (height + width + 1)
    if numbers >= array.size and form == "paper":
        return array, array.size
    shortened = []
    for matrix in matrices:
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        shortened.append((u[:, :k] * s[:k]) @ v[:k])
    if count == 1:
        arrives = shortened[0].reshape(array.shape)
    else:
        arrives = np.zeros(array.shape)
        for (i, o), matrix in zip(np.ndindex(array.shape[2:]), shortened):
            arrives[:, :, i, o] = matrix
    return arrives, min(numbers, array.size)
