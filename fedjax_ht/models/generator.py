"""A generator of features, conditional on a class."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.models.layers import Linear
from fedjax_ht.models.norm import Norm


class FeatureGenerator(nn.Module):
    """Linear-BatchNorm-ReLU-Linear on [noise; one-hot label].

    Noise float [B, D], labels int [B] and a mask of real rows, bool [B] -> features [B, K].
    """

    num_classes: int
    hidden_dim: int
    feature_dim: int

    @nn.compact
    def __call__(self, noise: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
        x = jnp.concatenate([noise, jax.nn.one_hot(labels, self.num_classes)], -1)
        x = Norm("static_batch", name="norm")(Linear(self.hidden_dim, name="fc1")(x), mask=mask)
        return Linear(self.feature_dim, name="fc2")(nn.relu(x))
