"""Calls in tests are checked against the dtypes and axes of signatures and of fields (tests/shapes.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import fedjax_ht as fl
from fedjax_ht.core.batches import class_sums, shuffled
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.reductions import sorted_rows
from fedjax_ht.core.round import Participant, view
from fedjax_ht.core.server_training import compact

BATCH = fl.Batch(jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), jnp.ones(3, bool))
COUNTS = np.zeros(5, np.int32)
SPLITS = fl.Split(np.zeros((5, 4), np.int32), COUNTS)
DATA = fl.Data(np.ones((9, 2)), np.zeros(9, np.int32), lambda x: x, {"train": SPLITS})
INFO = ClientInfo(np.int32(3), np.int32(4), np.int32(-1))
CLIENT = Participant(np.int32(1), INFO, valid=np.True_, dropped=np.False_)


@pytest.mark.parametrize(
    "call",
    [
        lambda: class_sums(jnp.ones((3, 2)), BATCH._replace(mask=jnp.ones(3)), 2),
        lambda: class_sums(jnp.ones((3, 2)), BATCH._replace(y=jnp.zeros(2, jnp.int32)), 2),
        lambda: class_sums(jnp.ones(3), BATCH, 2),
        lambda: shuffled(jax.random.PRNGKey(0), fl.Split(jnp.arange(4), jnp.int32(3))),
        lambda: shuffled(jax.random.key(0), SPLITS),
        lambda: view(DATA, CLIENT._replace(info=INFO._replace(id=np.float32(3)))),
        lambda: view(
            DATA._replace(splits={"train": SPLITS._replace(count=COUNTS[:, None])}), CLIENT
        ),
        lambda: compact(jnp.arange(3)),
        lambda: sorted_rows(jnp.arange(3)),
    ],
    ids=[
        "no mask",
        "lengths of a batch",
        "no rows",
        "a key of another kind",
        "splits of several clients",
        "no id",
        "counts of another shape",
        "no mask of rows",
        "no floats",
    ],
)
def test_another_shape_or_dtype_is_refused(call):
    with pytest.raises(TypeCheckError):
        call()
