"""Layers with flax's parameter layout, the papers' initialisations and this library's kernels."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.ops import batch_norm, conv2d, product

Initialisation = Literal["torch", "torch_zero_bias", "flax", "glorot", "kaiming", "trunc_normal"]
"""The initialisation of kernels and biases.

torch: both uniform within +-1/sqrt(fan_in), torch's default.
torch_zero_bias: the same kernels, zero biases.
flax: lecun normal kernels, zero biases, flax's default.
glorot: kernels uniform within +-sqrt(6 / (fan_in + fan_out)), zero biases: Keras' default,
  pfl-research's models.
kaiming: normal with std sqrt(2 / fan_out), zero biases: torchvision's ResNet and MobileNetV2.
trunc_normal: normal with std 0.01 within [-2, 2], zero biases: torchvision's GoogLeNet.
"""


def _flat(draw: Callable) -> Callable:
    """Returns an initialiser of the same distribution that draws a vector and reshapes it."""

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
      shape, dtype: shape and dtype of a kernel or of a bias; torch draws both from the same
        distribution.
      fan_in: number of inputs of one output.
    """
    bound = fan_in**-0.5
    # Drawn flat, see `_flat`.
    return jax.random.uniform(key, (math.prod(shape),), dtype, -bound, bound).reshape(shape)


def init_normed(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Draws a linear layer by torch's default, and a layer norm after it with scale 1, shift 0."""
    kernel_key, bias_key = jax.random.split(key)
    return {
        "kernel": uniform_fan_in(kernel_key, (inputs, outputs), inputs),
        "bias": uniform_fan_in(bias_key, (outputs,), inputs),
        "scale": jnp.ones(outputs),
        "shift": jnp.zeros(outputs),
    }


def _initialisers(
    initialisation: Initialisation, fan_in: int, fan_out: int
) -> tuple[Callable, Callable]:
    """Returns the initialisers of a kernel and of a bias."""
    torch = functools.partial(uniform_fan_in, fan_in=fan_in)
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

    Parameters as in flax's Conv: "kernel" [h, w, C / groups, features], "bias" [features].

    Attributes:
      features: number of output channels.
      size: size (h, w) of the kernel in pixels, or one number for both.
      stride, padding: stride and zero padding in pixels, for both axes.
      groups: 1, or C with features = C for a depthwise convolution.
      use_bias: True adds a bias.
      initialisation: distribution of the initial weights, see `Initialisation`.
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

    Parameters as in flax's Dense: "kernel" [D, features], "bias" [features].
    """

    features: int
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel_init, bias_init = _initialisers(self.initialisation, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
        return product(x, kernel) + self.param("bias", bias_init, (self.features,))


NormKind = Literal["batch", "group", "layer", "static_batch", "none"]
"""The statistics that a layer normalises by.

batch: the batch's in training, running ones in evaluation, which are the client's own state.
static_batch: the batch's, none kept (HeteroFL, DFRD); in evaluation those of the collection
  "batch_stats", if there is one.
group: of groups of gcd(channels, 16) channels of one sample; one channel, as in instance norm, if
  their number is odd.
layer: of all channels of one sample.
none: nothing is normalised, and there are no parameters.
"""

MOMENTUM = 0.1  # torch's: the share of the newest batch in the running statistics


class Norm(nn.Module):
    """A norm of channels with a scale and a shift: float [B, ..., C] -> the same shape.

    Parameters are "scale" and "bias" [C]. Kind "batch" keeps "mean" and "var" [C] in the collection
    "batch_stats". As in torch, the running variance is unbiased, while the batch is normalised by
    the biased one. A batch with a single value per channel, which torch rejects, has variance 0. A
    batch without real samples does not change the running statistics.
    """

    kind: NormKind = "batch"
    epsilon: float = 1e-5
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        if self.kind == "none":
            return x
        channels = x.shape[-1]
        scale = self.param("scale", self.scale_init, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        if self.kind in ("batch", "static_batch"):
            real = jnp.ones(x.shape[0], bool) if mask is None else mask
            normalise = self._batch if self.kind == "batch" else self._static_batch
            return normalise(x, scale, bias, real, train)
        if self.kind not in ("group", "layer"):
            raise ValueError(
                f"norm is {self.kind!r}; it must be batch, group, layer, static_batch or none"
            )
        mean, var = sample_moments(x, channels if self.kind == "layer" else math.gcd(channels, 16))
        return _apply(mean, var, self.epsilon, x=x, scale=scale, bias=bias)

    def _batch(self, x, scale, bias, real, train) -> jax.Array:
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, scale.shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, scale.shape)
        if not train:
            return _apply(
                running_mean.value, running_var.value, self.epsilon, x=x, scale=scale, bias=bias
            )
        # with `nondiff_argnums` jax does not type the results
        outputs: Any = batch_norm(x, scale, bias, real, self.epsilon)
        y, mean, var = outputs
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            count = real.sum() * math.prod(x.shape[1:-1])
            rate = MOMENTUM * (count > 0)  # 0 for a batch of padding alone: nothing changes
            # A single value has no unbiased variance: use the biased one, 0.
            unbiased = var * (count / jnp.maximum(count - 1, 1))
            running_mean.value += rate * (mean - running_mean.value)
            running_var.value += rate * (unbiased - running_var.value)
        return y

    def _static_batch(self, x, scale, bias, real, train) -> jax.Array:
        outputs: Any = batch_norm(x, scale, bias, real, self.epsilon)
        y, mean, var = outputs
        self.sow("intermediates", "moments", jnp.stack([mean, var]))
        if train or not self.has_variable("batch_stats", "mean"):
            return y
        kept_mean = self.get_variable("batch_stats", "mean")
        kept_var = self.get_variable("batch_stats", "var")
        return _apply(kept_mean, kept_var, self.epsilon, x=x, scale=scale, bias=bias)


def _apply(mean, var, epsilon, *, x, scale, bias) -> jax.Array:
    return (x - mean) * (jax.lax.rsqrt(var + epsilon) * scale) + bias


def sample_moments(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """Returns mean and biased variance of each sample over its pixels and groups of channels.

    Args:
      x: float [B, ..., C].
      group: number of neighbouring channels that share statistics; it divides C.

    Returns:
      Two float [B, 1, ..., C], the same number for all channels of a group.
    """
    grouped = x.reshape(*x.shape[:-1], -1, group)
    axes = (*range(1, x.ndim - 1), x.ndim)
    mean = grouped.mean(axes, keepdims=True)
    var = jnp.square(grouped - mean).mean(axes, keepdims=True)

    def spread(m):
        return jnp.broadcast_to(m, (*m.shape[:-1], group)).reshape(*m.shape[:-2], -1)

    return spread(mean), spread(var)
