"""Calls in tests are checked against the dtypes and axes of signatures and of fields (tests/shapes.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import fedjax_ht as fl
from fedjax_ht.core.batches import class_sums, shuffled
from fedjax_ht.losses import cross_entropy, masked_mean
from fedjax_ht.ops import pairwise_distance

BATCH = fl.Batch(jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), jnp.ones(3, bool))
CALLS = {
    "no mask": lambda: class_sums(jnp.ones((3, 2)), BATCH._replace(mask=jnp.ones(3)), 2),
    "a key of another kind": lambda: shuffled(
        jax.random.PRNGKey(0), fl.Split(jnp.arange(4), jnp.int32(3))
    ),
    "axes of a tuple": lambda: shuffled(
        jax.random.key(0), fl.Split(jnp.zeros((2, 4), jnp.int32), jnp.int32(3))
    ),
    "widths": lambda: pairwise_distance(jnp.ones((2, 3)), jnp.ones((4, 2))),
    "a mask of numbers": lambda: masked_mean(jnp.ones(3), jnp.ones(3)),
    "in a trace": lambda: jax.eval_shape(
        cross_entropy, np.ones((2, 3)), np.ones(3, int), np.ones(2, bool)
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_another_shape_or_dtype_is_refused(kind):
    with pytest.raises(TypeCheckError):
        CALLS[kind]()


def test_clients_side_by_side_are_checked_one_by_one():
    values, masks = jnp.ones((5, 3)), jnp.ones((5, 3), bool)
    assert jax.eval_shape(jax.vmap(masked_mean), values, masks).shape == (5,)
