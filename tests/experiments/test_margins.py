"""Distances between class prototypes."""

import numpy as np
import pytest

from experiments.margins import prototype_margins
from tests.reference.margins import nearest_and_mean


@pytest.mark.parametrize("seed", range(3))
def test_margins_equal_the_reference(seed):
    """Five clients have different classes, some one or none; absent prototypes are never read."""
    rng = np.random.default_rng(seed)
    present = rng.random((5, 6)) < 0.5
    present[0], present[1] = False, np.arange(6) == 2
    prototypes = np.where(present[..., None], rng.normal(size=(5, 6, 4)), np.nan).astype(np.float32)
    got = prototype_margins(prototypes, present)
    for client in range(5):
        labels = np.flatnonzero(present[client]).tolist()
        want = nearest_and_mean({label: prototypes[client, label].tolist() for label in labels})
        for label in range(6):
            expected = want.get(label, (np.nan, np.nan))
            np.testing.assert_allclose(
                (got.nearest[client, label], got.mean[client, label]), expected, rtol=1e-6
            )


def test_the_global_prototypes_are_one_set():
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    got = prototype_margins(corners, np.ones(3, bool))
    np.testing.assert_allclose(got.nearest, [3, 3, 4])
    np.testing.assert_allclose(got.mean, [3.5, 4, 4.5])
