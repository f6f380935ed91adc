"""StyleGAN3's alias-free activation (Karras et al., NeurIPS 2021): leaky ReLU at a higher sampling
rate.

Resampling filters are sums of shifted slices, one axis at a time. Measured on CPU against dense
matrices this is as fast at 36 pixels and nine times faster at 532, and ten times faster than XLA's
convolution with one channel.
"""

import jax
import jax.numpy as jnp
from jax import lax


def filtered_leaky_relu(
    x: jax.Array,
    up_filter: jax.Array,
    down_filter: jax.Array,
    up: int,
    down: int,
    padding: tuple[int, int, int, int],
    gain: float,
    slope: float,
    clamp: float | None,
) -> jax.Array:
    """Upsamples, applies leaky ReLU * gain, clamps to +-clamp, and downsamples.

    Args:
      x: float [n, h, w, C].
      up_filter: float [taps], for both axes.
      down_filter: float [taps], for both axes, or [taps, taps].
      up: zeros are inserted until the rate is `up` times that of x.
      down: every `down`-th sample is kept, the first one first.
      padding: samples at the upsampled rate to add before and after rows (x), then columns (y); cut
        off if negative.
      gain, slope, clamp: of the activation; no clamping if None.

    Returns:
      float [n, h', w', C], h' = ceil((h up + sum(padding[2:]) - up taps - down taps + 2) / down),
      w' accordingly.
    """
    x = _upsample(x, up_filter, up, padding[2], padding[3], axis=1)
    x = _upsample(x, up_filter, up, padding[0], padding[1], axis=2)
    x = jnp.where(x >= 0, x, x * slope) * gain
    x = x if clamp is None else jnp.clip(x, -clamp, clamp)
    if down_filter.ndim == 1:
        return _downsample(_downsample(x, down_filter, down, axis=1), down_filter, down, axis=2)
    rows = _taps(x, len(down_filter), down, axis=1)
    return sum(_downsample(row, weights, down, axis=2) for row, weights in zip(rows, down_filter))


def _upsample(
    x: jax.Array, weights: jax.Array, up: int, before: int, after: int, axis: int
) -> jax.Array:
    """Zeros inserted after every sample, padded, convolved; up times larger, so that the mean
    stays.

    Sample up q + p of the result is the sum over a of x[q + a] weights[p + taps - 1 - before - up
    a].
    """
    taps, length = len(weights), x.shape[axis]
    size = length * up + before + after - taps + 1
    blocks = -(-size // up)
    # the weight that meets x[q], for each phase p
    last = [p + taps - 1 - before for p in range(up)]
    shifts = [range(-((taps - 1 - c) // up), c // up + 1) for c in last]
    lowest, highest = min(s.start for s in shifts), max(s.stop for s in shifts) - 1
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (-lowest, blocks - 1 + highest - (length - 1), 0)
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)

    def part(a):
        return lax.slice_in_dim(x, a - lowest, a - lowest + blocks, axis=axis)

    phases = [sum(weights[c - up * a] * part(a) for a in s) for c, s in zip(last, shifts)]
    joined = jnp.stack(phases, axis + 1).reshape(*x.shape[:axis], blocks * up, *x.shape[axis + 1 :])
    return lax.slice_in_dim(joined, 0, size, axis=axis) * up


def _downsample(x: jax.Array, weights: jax.Array, down: int, axis: int) -> jax.Array:
    """Convolved without padding, every `down`-th sample kept."""
    return sum(weight * tap for weight, tap in zip(weights, _taps(x, len(weights), down, axis)))


def _taps(x: jax.Array, taps: int, down: int, axis: int) -> list[jax.Array]:
    """What each weight of a convolution meets."""
    stop = x.shape[axis] - taps + 1
    return [lax.slice_in_dim(x, t, t + stop, down, axis=axis) for t in reversed(range(taps))]
