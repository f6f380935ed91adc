"""Means over clients: what weighs them, and what cannot be averaged."""

import jax.numpy as jnp
import pytest

import fedjax_ht as fl

INFO = fl.ClientInfo(jnp.arange(3), jnp.array([10, 0, 30]), jnp.zeros(3, int))
RECEIVED = fl.Received((), INFO, jnp.array([True, True, False]))


def test_numbers_of_samples_weigh_in_every_form():
    """An array had no influence: all clients weighed 1."""
    for samples in (fl.Metadata(INFO.num_samples), INFO.num_samples, jnp.array([10.0, 0.0, 30.0])):
        assert fl.client_weights(RECEIVED, samples).tolist() == [10, 0, 0]
    assert fl.client_weights(RECEIVED).tolist() == [1, 0, 0]
    for wrong in ("samples", jnp.ones(2), fl.Metadata(jnp.float32(1))):
        with pytest.raises(ValueError, match=r"num_samples of client_weights is .* each of 3 cli"):
            fl.client_weights(RECEIVED, wrong)


def test_masks_and_integers_have_no_mean():
    masked = fl.Masked(jnp.ones((2, 4)), jnp.ones((2, 4), bool))
    for stacked, kind in (({"a": masked}, "bool"), ({"a": jnp.ones((2, 4), int)}, "int32")):
        with pytest.raises(ValueError, match=f"weighted_mean takes floats, but .* is {kind}; con"):
            fl.weighted_mean(stacked, jnp.ones(2))
