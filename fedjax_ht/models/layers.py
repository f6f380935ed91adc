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
    """Returns an initialiser of the same distribution that draws a vector and shapes it."""

    def draw_flat(key, shape, dtype=jnp.float32):
        # A four-dimensional draw compiles four times slower on CPU.
        return draw(key, (math.prod(shape),), dtype).reshape(shape)

    return draw_flat


def uniform_fan_in(
    key: jax.Array, shape: Sequence[int], fan_in: int, dtype=jnp.float32
) -> jax.Array:
    """Draws U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's default for linear and conv layers.

    Args:
      key: the key of the draw.
      shape, dtype: shape and dtype of a kernel or of a bias; torch draws both from one
        distribution.
      fan_in: number of inputs of one output.
    """
    bound = fan_in**-0.5

    def draw(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return _flat(draw)(key, shape, dtype)


def _initialisers(
    initialisation: Initialisation, fan_in: int, fan_out: int
) -> tuple[Callable, Callable]:
    """Returns the initialisers of a kernel and of a bias."""

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
    """A convolution of images: float [B, H, W, C] -> [B, H', W', features].

    Parameters as flax's Conv has them: "kernel" [h, w, C / groups, features], "bias" [features].

    Attributes:
      features: number of output channels.
      size: size (h, w) of the kernel in pixels, or one number for both.
      stride, padding: stride and zero padding in pixels, for both axes.
      groups: 1, or C with features = C for a depthwise convolution.
      use_bias: True adds a bias.
      initialisation: the distribution of the first weights, see `Initialisation`.
    """

    features: int
    size: int | tuple[int, int]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    use_bias: bool = True
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        height, width = size
        shape = (height, width, x.shape[-1] // self.groups, self.features)
        area = height * width
        kernel_init, bias_init = _initialisers(
            self.initialisation, area * shape[2], area * self.features
        )
        kernel = self.param("kernel", kernel_init, shape)
        x = conv2d(x, kernel, self.stride, self.padding, self.groups)
        if self.use_bias:
            x = x + self.param("bias", bias_init, (self.features,))
        return x


class Linear(nn.Module):
    """A dense layer with bias: float [..., D] -> [..., features].

    Parameters as flax's Dense has them: "kernel" [D, features], "bias" [features].
    """

    features: int
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel_init, bias_init = _initialisers(self.initialisation, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
        return product(x, kernel) + self.param("bias", bias_init, (self.features,))
