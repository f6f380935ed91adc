"""The network of the config cifar10_users."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.configs.cifar10_users import network
from fedjax_ht.core.bucket import features, init_variables, make_bucket

SHAPE = (8, 8, 3)
WIDTH = 64


def test_half_of_its_hidden_units_are_dropped_in_training():
    bucket, _ = make_bucket("cnn", network(10, SHAPE, WIDTH)["cnn"], SHAPE, 10)
    variables = init_variables(bucket, jax.random.key(0))
    x, mask = jax.random.normal(jax.random.key(1), (50, *SHAPE)), jnp.ones(50, bool)
    positive = {}
    for train in (False, True):
        key, (params, stats) = jax.random.key(2), (variables["params"], variables["stats"])
        made, *_ = features(bucket, params, stats, x, mask, train=train, key=key)
        positive[train] = np.mean(np.asarray(made) > 0)
    # the ReLU makes others zero, too
    assert 0.4 < positive[True] / positive[False] < 0.6
