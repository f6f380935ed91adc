"""The server's reading of a secure sum, entry by entry."""

import numpy as np


def shares(values, masks) -> tuple[np.ndarray, np.ndarray]:
    """Replaces k clients' values by equal shares of their sum: where c of them have sent an entry,
    the first c clients hold the c-th part of it.

    Args:
      values: [k, n], a row a client.
      masks: bool [k, n], entries that each client has sent.

    Returns:
      Such values [k, n], 0 where c is 0, and masks [k, n].
    """
    k, n = np.shape(values)
    out, sent = np.zeros((k, n)), np.zeros((k, n), bool)
    for j in range(n):
        present = [values[i][j] for i in range(k) if masks[i][j]]
        for i in range(k):
            out[i, j] = sum(present) / len(present) if present else 0.0
            sent[i, j] = i < len(present)
    return out, sent
