"""The definitions of accuracy."""

import numpy as np
import pytest

from fedjax_ht.metrics.accuracy import summarise


def test_the_means_differ_as_defined():
    accuracy, counts = np.array([1.0, 0.5, 0.0, np.nan]), np.array([10, 20, 70, 0])
    summary = summarise(accuracy, counts)
    assert summary.mean == pytest.approx(0.5)
    assert summary.weighted == pytest.approx((10 + 10) / 100)
    assert summary.std == pytest.approx(np.std([1.0, 0.5, 0.0]))
    assert summary.worst == 0.0


def test_the_worst_tenth_is_a_mean_over_clients():
    summary = summarise(np.arange(20) / 20, np.ones(20))
    assert summary.worst == pytest.approx((0 + 1 / 20) / 2)


def test_nobody_has_samples():
    assert all(np.isnan(summarise(np.array([np.nan]), np.array([0]))))
