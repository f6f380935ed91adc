"""Codes of uploads in NumPy, one number after another."""

import math

import numpy as np


def rounded(change: np.ndarray, bits: int) -> tuple[np.ndarray, float]:
    """The integers nearest to a change in units of its largest entry / (2^(bits - 1) - 1)."""
    most = 2 ** (bits - 1) - 1
    unit = max((abs(float(x)) for x in change.ravel()), default=0.0) / most
    integers = [0 if unit == 0 else round(float(x) / unit) for x in change.ravel()]
    return np.array(integers).reshape(change.shape), unit


def read_rounded(start: np.ndarray, integers: np.ndarray, unit: float) -> np.ndarray:
    return start + integers * unit


def read_largest(start: np.ndarray, upload: np.ndarray, share: float) -> np.ndarray:
    """The start with the entries of the upload that differ most from it."""
    number = math.ceil(share * len(start))
    order = sorted(range(len(start)), key=lambda i: -abs(upload[i] - start[i]))
    read = start.copy()
    for i in order[:number]:
        read[i] = upload[i]
    return read
