"""The config's field names the optimizer that an experiment trains with; a method's name never
does."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.configs import cifar10_class_shares, fashion_mnist_class_shares
from fedjax_ht.configs.sections import TrainingConfig
from fedjax_ht.experiment.training import local_training
from fedjax_ht.methods import METHODS


@pytest.mark.parametrize("file", [cifar10_class_shares, fashion_mnist_class_shares])
def test_all_methods_of_a_table_train_alike(file):
    usual = file.get_config("method=local").training
    for name in METHODS:
        assert file.get_config(f"method={name}").training == usual, name
    assert (usual.optimizer, usual.learning_rate) == ("sgd", 0.1)


def test_beta1_reaches_adam():
    """Gradients 1 and then 0, at rate 0.1: m is b (1 - b) / (1 - b^2), v is 0.999 / 1.999, of which
    the root."""
    for beta1 in (0.9, 0.5):
        training = TrainingConfig(optimizer="adam", learning_rate=0.1, beta1=beta1)
        optimizer = local_training(training).optimizer
        state = optimizer.init(jnp.zeros(1))
        for gradient in (1.0, 0.0):
            update, state = optimizer.update(jnp.full(1, gradient), state, jnp.zeros(1))
        mean, square = beta1 / (1 + beta1), 0.999 / 1.999
        np.testing.assert_allclose(update, [-0.1 * mean / np.sqrt(square)], rtol=1e-4)
