"""What a server makes of a secure sum, entry by entry."""

import numpy as np


def shares(values, masks) -> tuple[np.ndarray, np.ndarray]:
    """What k clients' sum becomes: the first c of them have the c-th part where c have sent an
    entry.

    Args:
      values: [k, n], a row a client.
      masks: bool [k, n], what each has sent.

    Returns:
      Such values [k, n], 0 where c is 0, and masks [k, n].
    """
    k, n = np.shape(values)
    out, sent = np.zeros((k, n)), np.zeros((k, n), bool)
    for j in range(n):
        there = [values[i][j] for i in range(k) if masks[i][j]]
        for i in range(k):
            out[i, j] = sum(there) / len(there) if there else 0.0
            sent[i, j] = i < len(there)
    return out, sent
