"""Inference of StyleGAN3 and StyleGAN-XL.

    G_m: z, class  ->  dense layers  ->  w
    G_s: w  ->  a grid of sine waves, translated and rotated by w
         ->  layers: 3x3 or 1x1 convolution with input channels scaled by w, filtered leaky ReLU
         ->  image

Sources: Karras et al., NeurIPS 2021, and Sauer et al., SIGGRAPH 2022; written from the papers'
formulas. Everything fixed is computed when a network is read, in `stylegan3_files`: the variables
include gains of equalised learning rates, normalised kernels and class embeddings. The styles of a
layer are normalised by their own mean square; the papers' code takes the batch's, which the
demodulation cancels.

The resampling filters of the alias-free activation are sums of shifted slices, one axis at a time.
On CPU this is as fast as dense matrices at 36 pixels and nine times faster at 532, and ten times
faster than XLA's convolution with one channel.
"""

import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.trees import Array
from fedjax_ht.models.generator import Card, Generator
from fedjax_ht.ops import conv2d

Variables = dict[str, jax.Array]
_EPSILON = 1e-8


class Layer(NamedTuple):
    """Static description of a synthesis layer.

    Attributes:
      inputs, outputs: numbers of input and output channels.
      kernel: width of its convolution, in pixels.
      up, down: sampling rate of the activation over that of the input, and over that of the output.
      up_taps: length of the upsampling filter, [up_taps].
      down_taps: length of the downsampling filter, [down_taps], or [down_taps, down_taps] if
        `radial`.
      padding: samples to add at the upsampled rate, see `filtered_leaky_relu`.
      clamp: bound of the activations.
      to_rgb: True for the last layer, which is linear and not demodulated.
    """

    inputs: int
    outputs: int
    kernel: int
    up: int
    down: int
    up_taps: int
    down_taps: int
    radial: bool
    padding: tuple[int, ...]
    clamp: float | None
    to_rgb: bool


class Network(NamedTuple):
    """Static description of a generator.

    Attributes:
      family: "stylegan3" or "styleganxl"; they differ in the images' range and in the class
        embeddings.
      noise_dim, latent_dim: lengths of z and w.
      num_classes: number of classes; 0 for an unconditional generator.
      class_dim: length of a class embedding.
      mapping_layers: number of dense layers of the mapping.
      size: width and height of the grid of waves.
      sampling_rate, bandwidth: sampling rate and bandwidth of the waves.
      output_scale: factor on the image.
      layers: layers of the synthesis, in order.
    """

    family: Literal["stylegan3", "styleganxl"]
    noise_dim: int
    latent_dim: int
    num_classes: int
    class_dim: int
    mapping_layers: int
    size: tuple[int, ...]
    sampling_rate: float
    bandwidth: float
    output_scale: float
    layers: tuple[Layer, ...]


def make_generator(network: Network, variables: Variables, card: Card) -> Generator:
    """Makes the generator of a network from fitting variables (`expected_shapes`)."""
    conditional = functools.partial(sample_class, network) if network.num_classes else None
    return Generator(
        card=card,
        latent_dim=network.latent_dim,
        sample_w=functools.partial(sample_w, network),
        synthesize=functools.partial(synthesize, network),
        variables=variables,
        conditional=conditional,
        num_labels=network.num_classes,
    )


def expected_shapes(network: Network) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of a network's variables, all float32."""
    shapes, width = {}, network.noise_dim + network.class_dim
    for i in range(network.mapping_layers):
        shapes |= _dense_shapes(f"mapping/{i}", width, network.latent_dim)
        width = network.latent_dim
    if network.num_classes:
        shapes["classes"] = (network.num_classes, network.class_dim)
    waves = network.layers[0].inputs
    shapes |= {"input/transform": (3, 3), "input/frequencies": (waves, 2), "input/phases": (waves,)}
    shapes |= {"input/weight": (waves, waves)} | _dense_shapes("input/style", network.latent_dim, 4)
    for i, layer in enumerate(network.layers):
        name = f"layers/{i}"
        shapes |= {
            f"{name}/weight": (layer.kernel, layer.kernel, layer.inputs, layer.outputs),
            f"{name}/bias": (layer.outputs,),
            f"{name}/gain": (),
            f"{name}/up_filter": (layer.up_taps,),
            f"{name}/down_filter": (layer.down_taps,) * (2 if layer.radial else 1),
        } | _dense_shapes(f"{name}/style", network.latent_dim, layer.inputs)
    return shapes


def _dense_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/weight": (inputs, outputs), f"{name}/bias": (outputs,)}


def sample_w(network: Network, variables: Variables, key: jax.Array, n: int) -> jax.Array:
    """Draws valid latents, uniformly over all classes: float32 [n, H]."""
    if not network.num_classes:
        return map_noise(network, variables, jax.random.normal(key, (n, network.noise_dim)))
    label_key, key = jax.random.split(key)
    labels = jax.random.randint(label_key, (n,), 0, network.num_classes)
    return sample_class(network, variables, key, labels)


def sample_class(
    network: Network, variables: Variables, key: jax.Array, labels: jax.Array
) -> jax.Array:
    """Draws valid latents of the classes `labels`, int [n]: float32 [n, H]."""
    z = jax.random.normal(key, (len(labels), network.noise_dim))
    return map_noise(network, variables, z, labels)


def map_noise(
    network: Network, variables: Variables, z: jax.Array, labels: jax.Array | None = None
) -> jax.Array:
    """Maps noise, and classes, to latents: G_m, without truncation.

    Args:
      network, variables: description and variables of the generator.
      z: float [n, noise_dim], N(0, I).
      labels: int [n] for a conditional generator.

    Returns:
      float32 [n, H].
    """
    with jax.default_matmul_precision("highest"):
        x = normalise(jnp.asarray(z, jnp.float32))
        if network.num_classes:
            x = jnp.concatenate([x, variables["classes"][labels]], 1)
        for i in range(network.mapping_layers):
            x = activate(_dense(_part(variables, f"mapping/{i}"), x))
    return x


def render(network: Network, variables: Variables, w: jax.Array) -> jax.Array:
    """Renders latents, float [n, H], unclipped: float32 [n, h, w, channels], mostly in [-1, 1].

    Renders one image at a time: one fills a device, and memory does not grow with n.
    """
    return jax.lax.map(
        functools.partial(_render_one, network, variables), jnp.asarray(w, jnp.float32)
    )


def synthesize(network: Network, variables: Variables, w: jax.Array) -> jax.Array:
    """Makes images, float32 [n, h, w, 3] in [0, 1], of any latents, float [n, H]: G_s."""
    images = to_unit_range(network, render(network, variables, w))
    return jnp.broadcast_to(images, (*images.shape[:-1], 3))


def to_unit_range(network: Network, images: jax.Array) -> jax.Array:
    """Scales rendered images to [0, 1] and clips them.

    The middle of the range is 128 of 255 in StyleGAN3, and 127.5 in StyleGAN-XL.
    """
    middle = 128 if network.family == "stylegan3" else 127.5
    return jnp.clip((images * 127.5 + middle) / 255, 0, 1)


def _render_one(network: Network, variables: Variables, w: jax.Array) -> jax.Array:
    with jax.default_matmul_precision("highest"):
        x = _waves(network, _part(variables, "input"), w)
        for i, layer in enumerate(network.layers):
            x = _apply(layer, _part(variables, f"layers/{i}"), x, w)
    return x[0] * network.output_scale


def _waves(network: Network, variables: Variables, w: jax.Array) -> jax.Array:
    """Returns the input of the synthesis, [1, h, w, waves]: sines rotated and translated by w."""
    t = _dense(_part(variables, "style"), w)
    cosine, sine, x, y = t / jnp.sqrt(t[0] ** 2 + t[1] ** 2)
    turn = jnp.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    move = jnp.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]])
    motion = turn @ move @ variables["transform"]
    phases = variables["phases"] + variables["frequencies"] @ motion[:2, 2]
    frequencies = variables["frequencies"] @ motion[:2, :2]
    # Waves that the grid cannot hold fade out between the bandwidth and half the sampling rate.
    beyond = jnp.linalg.norm(frequencies, axis=1) - network.bandwidth
    amplitudes = jnp.clip(1 - beyond / (network.sampling_rate / 2 - network.bandwidth), 0, 1)
    x, y = ((jnp.arange(size) + 0.5 - size / 2) / network.sampling_rate for size in network.size)
    cycles = x[:, None] * frequencies[:, 0] + y[:, None, None] * frequencies[:, 1] + phases
    return (jnp.sin(2 * math.pi * cycles) * amplitudes @ variables["weight"])[None]


def _apply(layer: Layer, variables: Variables, x: jax.Array, w: jax.Array) -> jax.Array:
    """Applies a modulated convolution and the filtered activation.

    float [1, h, w, inputs] -> [1, h', w', outputs].
    """
    style = _dense(_part(variables, "style"), w)
    kernel = variables["weight"]
    if not layer.to_rgb:
        style = normalise(style, epsilon=0)
    y = conv2d(x * (style * variables["gain"]), kernel, padding=layer.kernel - 1, lowering="native")
    if not layer.to_rgb:
        y *= jax.lax.rsqrt(style**2 @ jnp.sum(kernel**2, (0, 1)) + _EPSILON)
    return filtered_leaky_relu(
        y + variables["bias"],
        up_filter=variables["up_filter"],
        down_filter=variables["down_filter"],
        up=layer.up,
        down=layer.down,
        padding=layer.padding,
        gain=1.0 if layer.to_rgb else math.sqrt(2),
        slope=1.0 if layer.to_rgb else 0.2,
        clamp=layer.clamp,
    )


def normalise(x: jax.Array, epsilon: float = _EPSILON) -> jax.Array:
    """Returns x / sqrt(mean of its squares), along the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)


def activate(x: jax.Array) -> jax.Array:
    """Applies leaky ReLU of slope 0.2 with the gain that keeps the second moment."""
    return jnp.where(x >= 0, x, 0.2 * x) * math.sqrt(2)


def _dense(layer: Variables, x: jax.Array) -> jax.Array:
    return x @ layer["weight"] + layer["bias"]


def _part(variables: Variables, name: str) -> Variables:
    """Returns the variables below `name`, without this prefix."""
    part = {}
    for key, value in variables.items():
        if key.startswith(f"{name}/"):
            part[key.removeprefix(f"{name}/")] = value
    return part


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
      up: upsampling factor; zeros are inserted.
      down: downsampling factor; keeps every `down`-th sample, from the first one on.
      padding: samples at the upsampled rate to add before and after rows (x), then columns (y);
        negative ones crop.
      gain, slope, clamp: gain, slope and bound of the activation; no bound if None.

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
    # A radial filter is not separable: apply a horizontal one for each of its rows.
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
        centre = phase + taps - 1 - before  # index of the weight that meets x[q]
        centres.append(centre)
        # The offsets a of this phase for which there is a weight.
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
    """Slices the samples that meet each weight of a convolution."""
    stop = x.shape[axis] - taps + 1
    return [lax.slice_in_dim(x, t, t + stop, down, axis=axis) for t in reversed(range(taps))]
