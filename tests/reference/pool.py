"""Pooling, one output at a time."""

import numpy as np


def max_pool(x: np.ndarray, window: int, stride: int, padding: int, ceil: bool) -> np.ndarray:
    """Maxima over the windows that torch takes; with `ceil` also over one that leaves the image on
    the right, unless it begins in the right padding."""

    def starts(length):
        rounded = np.ceil if ceil else np.floor
        count = int(rounded((length + 2 * padding - window) / stride)) + 1
        return [s for s in (i * stride - padding for i in range(count)) if s < length or not ceil]

    rows, columns = starts(x.shape[1]), starts(x.shape[2])
    out = np.zeros((x.shape[0], len(rows), len(columns), x.shape[3]))
    for b, i, j, c in np.ndindex(out.shape):
        r, s = rows[i], columns[j]
        out[b, i, j, c] = x[b, max(r, 0) : r + window, max(s, 0) : s + window, c].max()
    return out
