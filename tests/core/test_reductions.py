"""Sums and sorts over clients: what weighs nothing is never read; all forms are one function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core import reductions
from fedjax_ht.core.reductions import sorted_rows, weighted_sum


def stacked_arrays(clients: int):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 3, 2, 4), "bias": (4,), "scale": ()}
    return {k: rng.normal(size=(clients, *x)).astype(np.float32) for k, x in shapes.items()}


@pytest.mark.parametrize("form", [weighted_sum, reductions._one_by_one, reductions._fused])
def test_a_sum_over_clients(form):
    arrays, weights = stacked_arrays(5), np.array([0.5, 0.0, 2.0, 0.0, 1.5], np.float32)
    expected = {
        name: sum(w * x.astype(np.float64) for w, x in zip(weights, xs))
        for name, xs in arrays.items()
    }
    for xs in arrays.values():
        xs[1] = np.nan
    sums = jax.jit(form)(arrays, jnp.asarray(weights))
    for name, values in expected.items():
        np.testing.assert_allclose(sums[name], values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", [weighted_sum, reductions._one_by_one, reductions._fused])
def test_weights_of_single_entries(form):
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    weights = np.array([[1, 0, 2], [0, 0, 1], [3, 0, 0], [1, 0, 1]], np.float32)
    expected = (values * weights[:, :, None]).sum(0)
    values[weights == 0] = np.inf
    assert np.array_equal(form(values, weights), expected)
    assert np.array_equal(form(values, weights[:, :, None]), expected)


def test_half_precision_is_summed_in_single():
    ones = jnp.ones((1000, 2), jnp.bfloat16)
    total = weighted_sum(ones, jnp.full(1000, 0.1))
    assert total.dtype == jnp.bfloat16 and np.allclose(total, 100, atol=0.5)


def test_it_is_the_same_below_vmap():
    arrays, weights = stacked_arrays(6)["kernel"], np.linspace(0, 1, 6, dtype=np.float32)
    trials, shares = np.stack([arrays, 2 * arrays]), np.stack([weights, weights])
    once = weighted_sum(arrays, weights)
    assert np.allclose(jax.vmap(weighted_sum)(trials, shares), [once, 2 * once], atol=1e-6)


def test_on_cpu_no_axis_of_clients_is_reduced():
    text = jax.jit(weighted_sum).lower(jnp.ones((4, 8)), jnp.ones(4)).compile().as_text()
    assert "while" in text and " reduce(" not in text


@pytest.mark.parametrize("clients", [1, 3, 8, 20])
@pytest.mark.parametrize("columns", [(0,), (3, 5), (2100,)])
def test_columns_are_sorted_over_clients(clients, columns):
    values = np.random.default_rng(0).normal(size=(clients, *columns)).astype(np.float32)
    values[-1] = np.inf  # as of an entry that a client does not hold
    values[0] = values[clients // 2]  # ties
    for form in (sorted_rows, reductions._sorted_in_pieces):
        np.testing.assert_array_equal(jax.jit(form)(values), np.sort(values, axis=0))
