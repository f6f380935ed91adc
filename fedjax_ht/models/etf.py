"""The simplex equiangular tight frame: class vectors as far apart as vectors can be."""

import numpy as np


def simplex_etf(num_classes: int, dim: int) -> np.ndarray:
    """Returns sqrt(C / (C - 1)) U (I - 1 1^T / C) with orthonormal columns U (FedKTL).

    U is always the same, drawn from a fixed seed: the clients need not be sent it.

    Args:
      num_classes: number of classes, C.
      dim: numbers of a vector.

    Returns:
      float32 [dim, C]: columns of length 1, any two of which have the cosine -1 / (C - 1).

    Raises:
      ValueError: dim is below num_classes, or there are fewer than two classes.
    """
    if not 2 <= num_classes <= dim:
        raise ValueError(
            f"an ETF of {num_classes} classes needs at least 2 classes and as many dimensions, "
            f"got {dim}"
        )
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, num_classes)))
    centred = np.eye(num_classes) - 1 / num_classes
    return (np.sqrt(num_classes / (num_classes - 1)) * basis @ centred).astype(np.float32)
