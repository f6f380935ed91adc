"""Normalisation over the real samples of a batch, with torch's running statistics."""

import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.ops import batch_norm

NormKind = Literal["batch", "group", "layer", "static_batch", "none"]
"""The statistics that a layer normalises by.

batch: the batch's in training, running ones in evaluation, which are the client's own state.
static_batch: the batch's, none kept (HeteroFL, DFRD); in evaluation those of the collection
  "batch_stats", where there is one.
group: of groups of 16 channels of one sample (fewer where 16 does not divide the channels).
layer: of all channels of one sample.
none: nothing is normalised, and there are no parameters.
"""

MOMENTUM = 0.1  # torch's: the share of the newest batch in the running statistics


class Norm(nn.Module):
    """A norm of channels with a scale and a shift: float [B, ..., C] -> the same shape.

    Parameters "scale" and "bias" [C]. Kind "batch" keeps "mean" and "var" [C] in the collection
    "batch_stats"; as in torch the running variance is the unbiased one, while the batch is
    normalised by the biased one. Of a batch with a single value per channel, which torch refuses,
    the variance is 0. A batch without real samples leaves the running statistics as they are.
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
        # with `nondiff_argnums` jax declares no types of results
        outputs: Any = batch_norm(x, scale, bias, real, self.epsilon)
        y, mean, var = outputs
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            count = real.sum() * math.prod(x.shape[1:-1])
            rate = MOMENTUM * (count > 0)  # 0 for a batch of padding alone: nothing moves
            # A single value has no unbiased variance: its biased one, 0, is taken instead.
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
      group: neighbouring channels that share their statistics; it divides C.

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
