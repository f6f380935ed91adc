"""The network of the config cifar10_users."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.configs.cifar10_users import network
from fedjax_ht.core.bucket import features, init_variables, make_bucket

SHAPE = (8, 8, 3)
WIDTH = 64


def test_its_dropout_acts_in_training_and_needs_a_key():
    bucket, _ = make_bucket("cnn", network(10, SHAPE, WIDTH)["cnn"], SHAPE, 10)
    variables = init_variables(bucket, jax.random.key(0))
    x, mask = jax.random.normal(jax.random.key(1), (50, *SHAPE)), jnp.ones(50, bool)

    def run(train: bool, seed: int | None) -> np.ndarray:
        key = None if seed is None else jax.random.key(seed)
        params, stats = variables["params"], variables["stats"]
        return np.asarray(features(bucket, params, stats, x, mask, train=train, key=key)[0])

    plain = run(False, None)
    np.testing.assert_array_equal(run(True, None), plain)
    np.testing.assert_array_equal(run(False, 2), plain)
    dropped = run(True, 2)
    assert not np.array_equal(dropped, run(True, 3))
    # Half of the hidden units are dropped; the ReLU makes others zero, too.
    kept = np.mean(dropped > 0) / np.mean(plain > 0)
    assert 0.4 < kept < 0.6
