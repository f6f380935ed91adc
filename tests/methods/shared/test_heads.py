"""Heads: the first one, its rows, and the frame of an ETF. Their mean is in test_fedavg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.methods.shared.heads import head_of, init_head, rows_of, take_head
from fedjax_ht.methods.shared.pairs import simplex_etf
from tests import tiny
from tests.federations import mixed_federation
from tests.tiny import C, K


def head(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "kernel": rng.normal(size=(K, C)).astype(np.float32),
        "bias": rng.normal(size=C).astype(np.float32),
    }


OLD = head(99)


def test_first_head_is_one_that_client_0_could_have_drawn():
    key = jax.random.key(3)
    forth, back = (init_head(mixed_federation(reverse), key) for reverse in (False, True))
    tiny.check_equal(forth, back)  # whatever the order of the buckets
    drawn = init_variables(mixed_federation().buckets[0], key)["params"]["head"]
    assert jax.tree.map(jnp.shape, forth) == jax.tree.map(jnp.shape, drawn)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(forth))


def test_taking_a_head_leaves_the_rest():
    client = {"params": {"base": 1, "head": 2}, "stats": 3}
    assert take_head(client, 7) == {"params": {"base": 1, "head": 7}, "stats": 3}
    assert client["params"]["head"] == 2


@pytest.mark.parametrize(("bias", "place"), [("first", 0), ("last", K)])
def test_rows_of_a_head_have_the_bias_where_it_is_asked_for(bias, place):
    rows = rows_of(OLD, bias)
    np.testing.assert_array_equal(rows[:, place], OLD["bias"])
    np.testing.assert_array_equal(np.delete(rows, place, axis=1), OLD["kernel"].T)
    tiny.check_equal(head_of(rows, bias), OLD)
    several = head_of(jnp.stack([rows, 2 * rows]), bias)
    np.testing.assert_array_equal(several["kernel"][1], 2 * OLD["kernel"])


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
