"""Calls in tests are checked against the shapes and dtypes of signatures (pyproject.toml)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fedjax_ht.losses import cross_entropy, masked_mean
from fedjax_ht.ops import pairwise_distance


@pytest.mark.parametrize(
    "call",
    [
        lambda: pairwise_distance(jnp.ones((2, 3)), jnp.ones((4, 2))),
        lambda: masked_mean(jnp.ones(3), jnp.ones(2, bool)),
        lambda: masked_mean(jnp.ones(3), jnp.ones(3)),
        lambda: cross_entropy(jnp.ones((2, 3)), jnp.ones(2), jnp.ones(2, bool)),
        lambda: jax.eval_shape(cross_entropy, np.ones((2, 3)), np.ones(3, int), np.ones(2, bool)),
    ],
    ids=["widths", "lengths", "no mask", "no labels", "in a trace"],
)
def test_another_shape_or_dtype_is_refused(call):
    with pytest.raises(TypeCheckError):
        call()


def test_clients_side_by_side_are_checked_one_by_one():
    values, masks = jnp.ones((5, 3)), jnp.ones((5, 3), bool)
    assert jax.eval_shape(jax.vmap(masked_mean), values, masks).shape == (5,)
