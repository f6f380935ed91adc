"""Local training of a part of a model, with a penalty of its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl


def test_a_part_trains_alone_under_a_penalty_of_its_own_parameters():
    federation = fl.make_federation({"tiny": fl.mlp(2, (3,))}, (2,), 2, num_clients=1)
    (bucket,) = federation.buckets
    client = fl.init_variables(bucket, jax.random.key(0)) | {"kept": 1}
    split = fl.Split(indices=jnp.arange(4), count=jnp.int32(4))
    inputs, labels = jnp.eye(4, 2), jnp.array([0, 1, 0, 1])
    data = fl.Data(inputs, labels, preprocess=lambda x: x, splits={"train": split})
    ctx = fl.Context(jax.random.key(1), jnp.int32(0), None)
    recipe = fl.LocalTraining(optax.sgd(0.01), batch_size=4, epochs=2)

    def large(head):  # its gradient outweighs the cross-entropy's
        return 25 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(head))

    new, result = fl.train_model(recipe, bucket, client, data, ctx, part="head", penalty=large)
    before, after = client["params"], new["params"]
    jax.tree.map(np.testing.assert_array_equal, after["base"], before["base"])
    assert jax.tree.structure(result.params) == jax.tree.structure(after["head"])
    assert float(large(after["head"])) < 0.2 * float(large(before["head"])) and new["kept"] == 1
    for wrong in (
        {"trained": before},
        {"put": large},
        {"part": "head", "trained": 1, "put": large},
    ):
        with pytest.raises(ValueError, match="train_model takes trained and put together"):
            fl.train_model(recipe, bucket, client, data, ctx, **wrong)
