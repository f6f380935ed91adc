"""Calls in tests are checked against the dtypes and axes of signatures and of fields (tests/shapes.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import fedjax_ht as fl
from fedjax_ht.core.batches import class_sums, shuffled
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.round import Participant, view
from fedjax_ht.core.server_training import compact
from fedjax_ht.losses import cross_entropy, masked_mean
from fedjax_ht.ops import pairwise_distance

BATCH = fl.Batch(jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), jnp.ones(3, bool))
COUNTS = np.zeros(5, np.int32)
SPLITS = fl.Split(np.zeros((5, 4), np.int32), COUNTS)
DATA = fl.Data(np.ones((9, 2)), np.zeros(9, np.int32), lambda x: x, {"train": SPLITS})
INFO = ClientInfo(np.int32(3), np.int32(4), np.int32(-1))
CLIENT = Participant(np.int32(1), INFO, valid=np.True_, dropped=np.False_)

CALLS = {
    "no mask": lambda: class_sums(jnp.ones((3, 2)), BATCH._replace(mask=jnp.ones(3)), 2),
    "a key of another kind": lambda: shuffled(
        jax.random.PRNGKey(0), fl.Split(jnp.arange(4), jnp.int32(3))
    ),
    "no id": lambda: view(DATA, CLIENT._replace(info=INFO._replace(id=np.float32(3)))),
    "counts of another shape": lambda: view(
        DATA._replace(splits={"train": SPLITS._replace(count=COUNTS[:, None])}), CLIENT
    ),
    "no mask of rows": lambda: compact(jnp.arange(3)),
    "widths": lambda: pairwise_distance(jnp.ones((2, 3)), jnp.ones((4, 2))),
    "lengths": lambda: masked_mean(jnp.ones(3), jnp.ones(2, bool)),
    "a mask of numbers": lambda: masked_mean(jnp.ones(3), jnp.ones(3)),
    "no labels": lambda: cross_entropy(jnp.ones((2, 3)), jnp.ones(2), jnp.ones(2, bool)),
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
