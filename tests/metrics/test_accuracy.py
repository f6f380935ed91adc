"""The definitions of accuracy."""

import numpy as np
import pytest

from fedjax_ht.metrics.accuracy import class_accuracy, macro_f1, summarise


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


def test_macro_f1_is_over_the_classes_of_labels_and_predictions():
    """Class 3 is nowhere, class 2 only predicted; the last client has no samples."""
    labels, choices = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2])
    parts = [np.bincount(x, minlength=4) for x in (labels, choices, labels[labels == choices])]
    by_class = np.array([parts, np.zeros((3, 4), int)])
    f1 = [2 * 2 / (3 + 2), 2 * 1 / (2 + 2), 0.0]
    np.testing.assert_allclose(macro_f1(by_class), [np.mean(f1), np.nan])
    np.testing.assert_allclose(class_accuracy(by_class), [2 / 3, 1 / 2, np.nan, np.nan])
