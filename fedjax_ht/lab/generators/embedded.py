"""A small style-based generator of 32x32 images, and its .npz files.

    G_m: z in R^64, N(0, I)  ->  z / rms(z)  ->  two dense layers  ->  w in R^H
         the layers of a conditional generator also see the class's row of a learnt table
    G_s: w  ->  a style per convolution; a learnt 4x4 map  ->  3x3 convolutions at 4, 8, 8, 16, 16,
      32 and 32 pixels
         ->  image

It is a small StyleGAN2 (Karras et al., CVPR 2020) without noise inputs, so w alone determines the
image. Input channels are scaled by the style and outputs divided by their expected norm. Parameters
are stored unscaled and multiplied by their layer's gain when used (equalised learning rates, Karras
et al., ICLR 2018).
"""

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.generators import npz
from fedjax_ht.lab.generators.stylegan3 import activate, normalise
from fedjax_ht.lab.safe.bounded import in_one_line
from fedjax_ht.models.generator import Generator
from fedjax_ht.ops import conv2d
from fedjax_ht.ops.conv import Lowering

NOISE_DIM = 64
SIZE = 32
_MAPPING_RATE = 0.01  # learning rate of the mapping, over that of the rest
_UPSAMPLED = (1, 3, 5)  # convolutions at twice the resolution of the previous one


def init_variables(
    key: jax.Array,
    channels: tuple[int, int, int, int] = (128, 96, 48, 16),
    latent_dim: int = 512,
    image_channels: int = 3,
    num_classes: int = 0,
) -> PyTree:
    """Draws the weights of an untrained generator.

    Args:
      key: key of the random weights.
      channels: numbers of channels of the maps of 4, 8, 16 and 32 pixels; each is upsampled with
        the channels of the next.
      latent_dim: H, the length of w.
      image_channels: 1 (grey images) or 3.
      num_classes: number of classes of a conditional generator; 0 for an unconditional one.

    Returns:
      {"mapping", "constant", "convolutions", "image": weights, "average": float32 [H], the mean of
      w (here 0)}; and for a conditional generator "classes": float32 [num_classes, 64].
    """
    a, b, c, d = channels
    widths = ((a, a), (a, b), (b, b), (b, c), (c, d), (d, d))
    keys = jax.random.split(key, 4)
    layer_keys = jax.random.split(keys[2], len(widths))
    mapping_keys = jax.random.split(keys[0])
    mapping = {}
    noise_dim = 2 * NOISE_DIM if num_classes else NOISE_DIM
    for i, inputs in enumerate((noise_dim, latent_dim)):
        weight = normal(mapping_keys[i], (inputs, latent_dim)) / _MAPPING_RATE
        mapping[str(i)] = {"weight": weight, "bias": jnp.zeros(latent_dim)}
    convolutions = {}
    for i, (inputs, outputs) in enumerate(widths):
        convolutions[str(i)] = _init_layer(layer_keys[i], inputs, outputs, latent_dim)
    variables = {
        "mapping": mapping,
        "constant": normal(keys[1], (4, 4, a)),
        "convolutions": convolutions,
        "image": _init_layer(keys[3], d, image_channels, latent_dim),
        "average": jnp.zeros(latent_dim),
    }
    if num_classes:
        table_key = jax.random.fold_in(keys[0], 2)
        variables["classes"] = normal(table_key, (num_classes, NOISE_DIM))
    return variables


def _init_layer(key: jax.Array, inputs: int, outputs: int, latent_dim: int) -> PyTree:
    kernel_key, style_key = jax.random.split(key)
    return {
        "kernel": normal(kernel_key, (3, 3, inputs, outputs)),
        "bias": jnp.zeros(outputs),
        "style": {"weight": normal(style_key, (latent_dim, inputs)), "bias": jnp.ones(inputs)},
    }


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws N(0, 1) of a shape."""
    # Draws flat: same numbers, but a four-dimensional draw compiles four times slower on CPU
    return jax.random.normal(key, (math.prod(shape),)).reshape(shape)


def map_noise(variables: PyTree, z: jax.Array, labels: jax.Array | None = None) -> jax.Array:
    """Maps noise z, float [n, 64], to valid latents, float32 [n, H]: G_m.

    Args:
      variables: variables of the generator.
      z: noise, float [n, 64].
      labels: int [n], classes of a conditional generator; None for an unconditional one.
    """
    x = normalise(z)
    if labels is not None:
        x = jnp.concatenate([x, normalise(variables["classes"][labels])], -1)
    for layer in (variables["mapping"]["0"], variables["mapping"]["1"]):
        x = activate(dense(layer, x, _MAPPING_RATE))
    return x


def dense(layer: PyTree, x: jax.Array, rate: float = 1.0) -> jax.Array:
    """Applies a dense layer at an equalised learning rate: float [n, I] -> [n, O].

    Args:
      layer: {"weight" [I, O], "bias" [O]}.
      x: float [n, I].
      rate: the layer's learning rate, over that of the others.
    """
    return x @ (layer["weight"] * (rate / math.sqrt(x.shape[-1]))) + layer["bias"] * rate


def sample_w(variables: PyTree, key: jax.Array, n: int) -> jax.Array:
    """Draws valid latents w = G_m(z), z ~ N(0, I), of random classes: float32 [n, H]."""
    labels = None
    if "classes" in variables:
        label_key = jax.random.fold_in(key, 1)
        labels = jax.random.randint(label_key, (n,), 0, len(variables["classes"]))
    return map_noise(variables, jax.random.normal(key, (n, NOISE_DIM)), labels)


def sample_classes(variables: PyTree, key: jax.Array, labels: jax.Array) -> jax.Array:
    """Draws a conditional generator's valid latents for `labels`, int [n]: float32 [n, H]."""
    return map_noise(variables, jax.random.normal(key, (len(labels), NOISE_DIM)), labels)


def render(variables: PyTree, w: jax.Array, lowering: Lowering | None = None) -> jax.Array:
    """Renders latents, float [n, H], unclipped: float [n, 32, 32, 1 or 3], mostly in [-1, 1].

    `lowering` applies to the convolutions, see `ops.conv2d`.
    """
    conv = functools.partial(_styled_conv, w=w, lowering=lowering)
    x = jnp.broadcast_to(variables["constant"], (len(w), *variables["constant"].shape))
    for i in range(len(variables["convolutions"])):
        if i in _UPSAMPLED:
            n, height, width, channels = x.shape
            x = jax.image.resize(x, (n, 2 * height, 2 * width, channels), "bilinear")
        x = activate(conv(variables["convolutions"][str(i)], x, demodulate=True))
    return conv(variables["image"], x, demodulate=False)


def _styled_conv(
    layer: PyTree, x: jax.Array, w: jax.Array, demodulate: bool, lowering: Lowering | None
) -> jax.Array:
    """Convolves 3x3 with input channels scaled by their style.

    With `demodulate`, the output is divided by its expected norm under the style.
    """
    kernel = layer["kernel"] / math.sqrt(9 * x.shape[-1])
    style = dense(layer["style"], w)
    y = conv2d(x * style[:, None, None, :], kernel, padding=1, lowering=lowering)
    if demodulate:
        squared_norm = (style * style) @ jnp.sum(kernel * kernel, (0, 1)) + 1e-8
        y *= jax.lax.rsqrt(squared_norm)[:, None, None, :]
    return y + layer["bias"]


def synthesize(variables: PyTree, w: jax.Array) -> jax.Array:
    """Makes images, float32 [n, 32, 32, 3] in [0, 1], of any latents, float [n, H]: G_s."""
    images = jnp.clip((render(variables, w) + 1) / 2, 0, 1)
    return jnp.broadcast_to(images, (*images.shape[:-1], 3))


FORMAT = "embedded"


def load_embedded(path: Path | str) -> Generator:
    """Reads an embedded generator's .npz. Nothing in the file is executed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or not an embedded generator. One line.
    """
    metadata, arrays = npz.read(path)
    if metadata["format"] != FORMAT:
        raise ValueError(
            f"{path}: holds a generator of format {metadata['format']!r}; expected {FORMAT}"
        )
    with in_one_line(f"{path}: no embedded generator"):
        arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        channels = tuple(arrays[f"convolutions/{i}/kernel"].shape[2] for i in (0, 2, 4, 5))
        latent_dim = len(arrays["average"])
        image_channels = len(arrays["image/bias"])
        num_classes = len(arrays.get("classes", ()))
        # The arrays' widths must fit together, as in a generator of this size. The key is an
        # argument, or else the weights are drawn under `ensure_compile_time_eval`.
        expected = jax.eval_shape(
            lambda key: init_variables(key, channels, latent_dim, image_channels, num_classes),
            jax.random.key(0),
        )
        leaves, structure = jax.tree_util.tree_flatten_with_path(expected)
        npz.check(arrays, {_name(key): leaf.shape for key, leaf in leaves})
        card = npz.card(metadata)
    variables = jax.tree.unflatten(
        structure, [jnp.asarray(arrays[_name(key)]) for key, _ in leaves]
    )
    return Generator(
        card=card,
        latent_dim=latent_dim,
        sample_w=sample_w,
        synthesize=synthesize,
        variables=variables,
        conditional=sample_classes if num_classes else None,
        num_labels=num_classes,
    )


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
