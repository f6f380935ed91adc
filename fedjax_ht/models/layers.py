"""Layers with parameters laid out as flax's own, the papers' initialisations and this library's
kernels."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.ops import conv2d, product

Initialisation = Literal["torch", "torch_zero_bias", "flax", "glorot", "kaiming", "trunc_normal"]
"""Of kernels and biases.

torch: both uniform within +-1/sqrt(fan_in), torch's default.
torch_zero_bias: the same kernels, zero biases.
flax: lecun normal kernels, zero biases, flax's default.
glorot: kernels uniform within +-sqrt(6 / (fan_in + fan_out)), zero biases: Keras' default,
  pfl-research's models.
kaiming: normal with std sqrt(2 / fan_out), zero biases: torchvision's ResNet and MobileNetV2.
trunc_normal: normal with std 0.01 within [-2, 2], zero biases: torchvision's GoogLeNet.
"""


def _flat(draw: Callable) -> Callable:
    """Draws flat: the same distribution, but a four-dimensional draw compiles four times slower on
    CPU."""
    return lambda key, shape, dtype=jnp.float32: draw(key, (math.prod(shape),), dtype).reshape(
        shape
    )


def uniform_fan_in(
    key: jax.Array, shape: Sequence[int], fan_in: int, dtype=jnp.float32
) -> jax.Array:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): torch's default for the weights and the biases of linear
    and conv layers."""
    bound = fan_in**-0.5
    return _flat(lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound))(
        key, shape, dtype
    )


def _initialisers(
    initialisation: Initialisation, fan_in: int, fan_out: int
) -> tuple[Callable, Callable]:
    """Of a kernel and of a bias."""

    def torch(key, shape, dtype=jnp.float32):
        return uniform_fan_in(key, shape, fan_in, dtype)

    if initialisation == "torch":
        return torch, torch
    kernels = {
        "torch_zero_bias": torch,
        "flax": nn.initializers.lecun_normal(),
        "glorot": nn.initializers.glorot_uniform(),
        "kaiming": _flat(nn.initializers.normal((2 / fan_out) ** 0.5)),
        # The cut at 200 standard deviations never cuts.
        "trunc_normal": _flat(nn.initializers.normal(0.01)),
    }
    if initialisation not in kernels:
        raise ValueError(
            f"initialisation is {initialisation!r}; it must be torch or one of {', '.join(kernels)}"
        )
    return kernels[initialisation], nn.initializers.zeros


class Conv(nn.Module):
    """A convolution over [B, H, W, C]; parameters as flax's Conv: "kernel" [h, w, C / groups,
    features], "bias"; `size` is (h, w), or one number for both."""

    features: int
    size: int | tuple[int, int]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    use_bias: bool = True
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        shape = (height, width, x.shape[-1] // self.groups, self.features)
        area = height * width
        kernel_init, bias_init = _initialisers(
            self.initialisation, area * shape[2], area * self.features
        )
        x = conv2d(
            x, self.param("kernel", kernel_init, shape), self.stride, self.padding, self.groups
        )
        return x + self.param("bias", bias_init, (self.features,)) if self.use_bias else x


class Linear(nn.Module):
    """A dense layer with bias; parameters as flax's Dense ("kernel" [D, O], "bias" [O])."""

    features: int
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel_init, bias_init = _initialisers(self.initialisation, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
        return product(x, kernel) + self.param("bias", bias_init, (self.features,))
