"""Layers with parameters laid out as flax's own, torch's default initialisation and this library's kernels."""

import math
from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.ops import conv2d

Initialisation = Literal["torch", "flax"]


def uniform_fan_in(key: jax.Array, shape: Sequence[int], fan_in: int, dtype=jnp.float32) -> jax.Array:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): torch's default for the weights and the biases of linear and conv layers."""
    bound = fan_in**-0.5
    # Drawn flat: the same numbers, but a four-dimensional draw compiles four times slower on CPU.
    return jax.random.uniform(key, (math.prod(shape),), dtype, -bound, bound).reshape(shape)


def _initialisers(initialisation: Initialisation, fan_in: int):
    if initialisation == "flax":
        return nn.initializers.lecun_normal(), nn.initializers.zeros
    both = lambda key, shape, dtype=jnp.float32: uniform_fan_in(key, shape, fan_in, dtype)  # noqa: E731
    return both, both


class Conv(nn.Module):
    """A stride-1, unpadded convolution with bias; parameters as flax's Conv ("kernel" [k, k, C, O], "bias" [O])."""

    features: int
    size: int
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel_init, bias_init = _initialisers(self.initialisation, self.size * self.size * x.shape[-1])
        kernel = self.param("kernel", kernel_init, shape)
        return conv2d(x, kernel) + self.param("bias", bias_init, (self.features,))


class Linear(nn.Module):
    """A dense layer with bias; parameters as flax's Dense ("kernel" [D, O], "bias" [O])."""

    features: int
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel_init, bias_init = _initialisers(self.initialisation, x.shape[-1])
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
        return x @ kernel + self.param("bias", bias_init, (self.features,))
