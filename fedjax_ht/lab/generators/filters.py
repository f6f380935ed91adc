"""StyleGAN3's alias-free activation: leaky ReLU at a higher sampling rate.

After Karras et al., NeurIPS 2021.

Resampling filters are sums of shifted slices, one axis at a time. Measured on CPU against dense
matrices this is as fast at 36 pixels and nine times faster at 532, and ten times faster than XLA's
convolution with one channel.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.trees import Array


def filtered_leaky_relu(
    x: jax.Array,
    up_filter: jax.Array,
    down_filter: jax.Array,
    up: int,
    down: int,
    padding: tuple[int, ...],
    gain: float,
    slope: float,
    clamp: float | None,
) -> Array:
    """Upsamples, applies leaky ReLU * gain, clamps to +-clamp, and downsamples.

    Args:
      x: float [n, h, w, C].
      up_filter: float [taps], for both axes.
      down_filter: float [taps], for both axes, or [taps, taps].
      up: the factor of upsampling; zeros are inserted.
      down: the factor of downsampling; every `down`-th sample is kept, the first one first.
      padding: samples at the upsampled rate to add before and after rows (x), then columns (y); cut
        off if negative.
      gain, slope, clamp: gain and slope of the activation, and bound of its values; no bound if
        None.

    Returns:
      float [n, h', w', C], h' = ceil((h up + sum(padding[2:]) - up taps - down taps + 2) / down),
      w' accordingly.
    """
    x = _upsample(x, up_filter, up, padding[2], padding[3], axis=1)
    x = _upsample(x, up_filter, up, padding[0], padding[1], axis=2)
    x = jnp.where(x >= 0, x, x * slope) * gain
    if clamp is not None:
        x = jnp.clip(x, -clamp, clamp)
    if down_filter.ndim == 1:
        return _downsample(_downsample(x, down_filter, down, axis=1), down_filter, down, axis=2)
    # A radial filter is no product of two: a horizontal one for each of its rows.
    total: Any = 0
    for row, weights in zip(_taps(x, len(down_filter), down, axis=1), down_filter):
        total = total + _downsample(row, weights, down, axis=2)
    return total


def _upsample(
    x: jax.Array, weights: jax.Array, up: int, before: int, after: int, axis: int
) -> jax.Array:
    """Inserts zeros after every sample, pads, convolves, and multiplies by `up`.

    The factor keeps the mean. Sample up q + p of the result is the sum over a of x[q + a] times
    weights[p + taps - 1 - before - up a]: the zeros are never multiplied.
    """
    taps, length = len(weights), x.shape[axis]
    size = length * up + before + after - taps + 1
    blocks = -(-size // up)
    centres, shifts = [], []
    for phase in range(up):
        centre = phase + taps - 1 - before  # place of the weight that meets x[q]
        centres.append(centre)
        # The a of this phase: those for which there is a weight.
        shifts.append(range(-((taps - 1 - centre) // up), centre // up + 1))
    lowest, highest = min(s.start for s in shifts), max(s.stop for s in shifts) - 1
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (-lowest, blocks - 1 + highest - (length - 1), 0)
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    phases = []
    for centre, offsets in zip(centres, shifts):
        total = 0
        for a in offsets:
            part = lax.slice_in_dim(x, a - lowest, a - lowest + blocks, axis=axis)
            total = total + weights[centre - up * a] * part
        phases.append(total)
    joined = jnp.stack(phases, axis + 1).reshape(*x.shape[:axis], blocks * up, *x.shape[axis + 1 :])
    return lax.slice_in_dim(joined, 0, size, axis=axis) * up


def _downsample(x: jax.Array, weights: jax.Array, down: int, axis: int) -> Array:
    """Convolves without padding and keeps every `down`-th sample."""
    total: Any = 0
    for weight, tap in zip(weights, _taps(x, len(weights), down, axis)):
        total = total + weight * tap
    return total


def _taps(x: jax.Array, taps: int, down: int, axis: int) -> list[jax.Array]:
    """Slices the samples that each weight of a convolution meets."""
    stop = x.shape[axis] - taps + 1
    return [lax.slice_in_dim(x, t, t + stop, down, axis=axis) for t in reversed(range(taps))]
