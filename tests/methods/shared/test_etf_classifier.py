import numpy as np
import pytest

from fedjax_ht.methods.shared.pairs import simplex_etf


@pytest.mark.parametrize(("classes", "dim"), [(2, 2), (10, 10), (5, 9), (100, 100), (100, 512)])
def test_columns_have_length_one_and_equal_angles(classes, dim):
    vectors = simplex_etf(classes, dim)
    assert vectors.shape == (dim, classes) and vectors.dtype == np.float32
    want = np.where(np.eye(classes), 1, -1 / (classes - 1))
    np.testing.assert_allclose(np.float64(vectors).T @ vectors, want, atol=1e-6)
    np.testing.assert_allclose(vectors.sum(1), 0, atol=1e-5)  # a simplex around the origin


def test_it_is_always_the_same_and_not_aligned_with_the_axes():
    np.testing.assert_array_equal(simplex_etf(10, 12), simplex_etf(10, 12))
    np.random.seed(3)  # nobody else's state matters
    np.testing.assert_array_equal(simplex_etf(10, 12), simplex_etf(10, 12))
    assert np.abs(simplex_etf(10, 10)).max() < 0.95


@pytest.mark.parametrize(("classes", "dim"), [(5, 4), (1, 3), (0, 0)])
def test_too_few_dimensions_or_classes_are_refused(classes, dim):
    with pytest.raises(ValueError, match=f"an ETF of {classes} classes needs .* got {dim}$"):
        simplex_etf(classes, dim)
