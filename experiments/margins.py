"""Distances between class prototypes: the margins of FedTGP (Zhang et al., AAAI 2024, Fig. 1)."""

from typing import NamedTuple

import numpy as np


class Margins(NamedTuple):
    """Euclidean distances of each class's prototype to those of the other classes.

    Attributes:
      nearest: float64 [..., C], to the nearest one, the margin of FedTGP's text.
      mean: float64 [..., C], the mean distance to all of them.
    """

    nearest: np.ndarray
    mean: np.ndarray


def prototype_margins(prototypes: np.ndarray, present: np.ndarray) -> Margins:
    """Computes the margins of each set of prototypes.

    Args:
      prototypes: float [..., C, K]; rows that are not present may hold anything.
      present: bool [..., C], the classes that have a prototype.

    Returns:
      NaN for a class without a prototype, and where no other class has one.
    """
    # Rows that are not present may be NaN.
    rows = np.where(present[..., None], np.asarray(prototypes, np.float64), 0)
    distances = np.linalg.norm(rows[..., :, None, :] - rows[..., None, :, :], axis=-1)
    itself = np.eye(present.shape[-1], dtype=bool)
    compared = present[..., :, None] & present[..., None, :] & ~itself
    counts = compared.sum(-1)
    nearest = np.where(compared, distances, np.inf).min(-1)
    sums = np.where(compared, distances, 0).sum(-1)
    alone = counts == 0
    return Margins(
        nearest=np.where(alone, np.nan, nearest),
        mean=np.where(alone, np.nan, sums / np.maximum(counts, 1)),
    )
