"""Normalisation over the real samples of a batch, with torch's running statistics."""

import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

NormKind = Literal["batch", "group", "layer", "static_batch", "none"]
"""batch: batch statistics in training, running ones in evaluation; the running ones are the client's own state.
static_batch: batch statistics, none kept (HeteroFL, DFRD); in evaluation given ones, where there are ("batch_stats").
group: over groups of 16 channels of one sample (fewer where 16 does not divide the channels).
layer: over all channels of one sample.
none: not at all, without parameters.
"""

MOMENTUM = 0.1  # torch's: the share of the newest batch in the running statistics


class Norm(nn.Module):
    """Normalises channels, then scales and shifts. float [B, ..., C] -> the same shape.

    Parameters "scale" and "bias" [C]. Kind "batch" keeps "mean" and "var" [C] in the collection "batch_stats"; as in
    torch the running variance is the unbiased one, while the batch is normalised by the biased one. Of a batch with a
    single value per channel, which torch refuses, the variance is 0. A batch without real samples leaves the running
    statistics as they are.
    """

    kind: NormKind = "batch"
    epsilon: float = 1e-5
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: jax.Array | None = None) -> jax.Array:
        if self.kind == "none":
            return x
        channels = x.shape[-1]
        scale = self.param("scale", self.scale_init, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        if self.kind == "batch":
            mean, var = self._batch(x, train, mask)
        elif self.kind == "static_batch":
            mean, var, _ = batch_moments(x, mask)
            self.sow("intermediates", "moments", jnp.stack([mean, var]))
            if not train and self.has_variable("batch_stats", "mean"):
                mean, var = self.get_variable("batch_stats", "mean"), self.get_variable("batch_stats", "var")
        elif self.kind in ("group", "layer"):
            size = channels if self.kind == "layer" else math.gcd(channels, 16)
            mean, var = sample_moments(x, size)
        else:
            raise ValueError(f"norm is {self.kind!r}; it must be batch, group, layer, static_batch or none")
        return (x - mean) * (jax.lax.rsqrt(var + self.epsilon) * scale) + bias

    def _batch(self, x: jax.Array, train: bool, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        channels = x.shape[-1]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
        if not train:
            return running_mean.value, running_var.value
        mean, var, count = batch_moments(x, mask)
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            rate = MOMENTUM * (count > 0)
            unbiased = var * (count / jnp.maximum(count - 1, 1))
            running_mean.value += rate * (mean - running_mean.value)
            running_var.value += rate * (unbiased - running_var.value)
        return mean, var


def batch_moments(x: jax.Array, mask: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and biased variance per channel over the real samples, and how many values each is made of.

    x float [B, ..., C], mask bool [B] or None -> float [C], [C], [].
    """
    real = jnp.ones(x.shape[0], bool) if mask is None else mask
    area = math.prod(x.shape[1:-1])
    samples = real.sum()
    inner = tuple(range(1, x.ndim - 1))

    def average(values: jax.Array) -> jax.Array:
        # Sums of each sample first: the mask then touches [B, C] only.
        per_sample = jnp.where(real[:, None], values.sum(inner), 0)
        return per_sample.sum(0) / jnp.maximum(samples * area, 1)

    mean = average(x)
    return mean, average(jnp.square(x - mean)), samples * area


def sample_moments(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance of each sample over its pixels and `group` neighbouring channels, [B, 1, ..., C]."""
    grouped = x.reshape(*x.shape[:-1], -1, group)
    axes = (*range(1, x.ndim - 1), x.ndim)
    mean = grouped.mean(axes, keepdims=True)
    var = jnp.square(grouped - mean).mean(axes, keepdims=True)
    spread = lambda m: jnp.broadcast_to(m, (*m.shape[:-1], group)).reshape(*m.shape[:-2], -1)  # noqa: E731
    return spread(mean), spread(var)
