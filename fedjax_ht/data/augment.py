"""Training augmentation on the device, for one client's batch; vmapped with the client."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.names import unknown
from fedjax_ht.core.local_training import Augment


def flip(key: jax.Array, x: jax.Array) -> jax.Array:
    """Flips each image [H, W, C] of a batch left to right with probability 1/2."""
    mirrored = jax.random.bernoulli(key, 0.5, (x.shape[0], 1, 1, 1))
    return jnp.where(mirrored, x[:, :, ::-1], x)


def padded_crop(
    key: jax.Array, x: jax.Array, black: jax.Array | float = 0.0, pad: int = 4
) -> jax.Array:
    """Pads each side with black and crops back to size at a random position.

    Black is a number, or one number per channel. HeteroFL's and DFRD's released code pads before it
    normalises, so that black is -mean / std in normalised pixels, not 0. FedSSA's crops normalised
    pixels and pads with 0, the mean colour ("mean_padded_crop").
    """
    batch, height, width, channels = x.shape
    border = jnp.broadcast_to(
        jnp.asarray(black, x.dtype), (batch, height + 2 * pad, width + 2 * pad, channels)
    )
    padded = border.at[:, pad : pad + height, pad : pad + width].set(x)
    corners = jax.random.randint(key, (x.shape[0], 2), 0, 2 * pad + 1)

    def crop(image, at):
        return lax.dynamic_slice(image, (at[0], at[1], 0), x.shape[1:])

    return jax.vmap(crop)(padded, corners)


def random_erasing(key: jax.Array, x: jax.Array, probability: float = 0.5) -> jax.Array:
    """Sets a random rectangle to zero, which is the mean colour of normalised pixels.

    Its share of the image is uniform in [0.04, 0.2], its height / width log-uniform in [0.5, 2].
    """
    batch, height, width, _ = x.shape
    keys = jax.random.split(key, 5)
    area, aspect = _area_and_aspect(keys, x.shape, (0.04, 0.2), (0.5, 2.0))
    h = jnp.clip(jnp.round(jnp.sqrt(area * aspect)), 1, height)
    w = jnp.clip(jnp.round(jnp.sqrt(area / aspect)), 1, width)
    top, left = _corner(keys, x.shape, h, w)

    def inside(at, size, n):
        return (jnp.arange(n) >= at[:, None]) & (jnp.arange(n) < (at + size)[:, None])

    box = inside(top, h, height)[:, :, None] & inside(left, w, width)[:, None, :]
    box &= jax.random.bernoulli(keys[4], probability, (batch, 1, 1))
    return jnp.where(box[..., None], 0, x)


def resized_crop(key: jax.Array, x: jax.Array) -> jax.Array:
    """Crops a random rectangle of each image and resizes it bilinearly to the image's size.

    Its share of the image is uniform in [0.2, 1], its width / height log-uniform in [3/4, 4/3]. A
    side longer than the image's is clipped (torchvision redraws, at most ten times).
    """
    height, width = x.shape[1:3]
    keys = jax.random.split(key, 4)
    area, aspect = _area_and_aspect(keys, x.shape, (0.2, 1.0), (3 / 4, 4 / 3))
    h = jnp.clip(jnp.round(jnp.sqrt(area / aspect)), 1, height)
    w = jnp.clip(jnp.round(jnp.sqrt(area * aspect)), 1, width)
    top, left = _corner(keys, x.shape, h, w)

    def stretch(image, top, h, left, w):
        return _stretch(_stretch(image, top, h, 0), left, w, 1)

    return jax.vmap(stretch)(x, top, h, left, w)


def _area_and_aspect(
    keys: jax.Array,
    shape: tuple[int, ...],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[jax.Array, jax.Array]:
    """Draws the area in pixels and the aspect ratio of a rectangle for each image."""
    batch, height, width, _ = shape
    area = jax.random.uniform(keys[0], (batch,), minval=scale[0], maxval=scale[1]) * height * width
    low, high = map(jnp.log, ratio)
    return area, jnp.exp(jax.random.uniform(keys[1], (batch,), minval=low, maxval=high))


def _corner(
    keys: jax.Array, shape: tuple[int, ...], h: jax.Array, w: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws the top and left positions of rectangles with these sides."""
    batch, height, width, _ = shape
    top = jnp.floor(jax.random.uniform(keys[2], (batch,)) * (height - h + 1))
    return top, jnp.floor(jax.random.uniform(keys[3], (batch,)) * (width - w + 1))


def _stretch(image: jax.Array, start: jax.Array, size: jax.Array, axis: int) -> jax.Array:
    """Interpolates the `size` pixels from `start` along an axis to the axis's length.

    Pixel centres are at halves.
    """
    n = image.shape[axis]
    at = start + jnp.clip((jnp.arange(n) + 0.5) * size / n - 0.5, 0, size - 1)
    low = jnp.floor(at)
    share = jnp.expand_dims(at - low, [i for i in range(image.ndim) if i != axis])

    def pixel(i):
        return jnp.take(image, i.astype(jnp.int32), axis, mode="clip")

    return (1 - share) * pixel(low) + share * pixel(low + 1)


def colour_jitter(
    key: jax.Array,
    x: jax.Array,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    probability: float = 0.8,
) -> jax.Array:
    """Changes brightness, contrast, saturation and hue of each image, in this order.

    torchvision uses a random order.

    Args:
      key: the key of the draws.
      x: float [B, H, W, C], pixels in [0, 1]; grey images have neither saturation nor hue.
      brightness, contrast, saturation: half-widths of the factors, each uniform in [1 - value, 1 +
        value].
      hue: largest rotation of the hue, as a share of the colour circle; uniform in [-hue, hue].
      probability: probability that an image is changed at all.
    """
    shape = (x.shape[0], 1, 1, 1)
    keys = jax.random.split(key, 5)

    def factor(key, spread):
        return jax.random.uniform(key, shape, minval=1 - spread, maxval=1 + spread)

    out = jnp.clip(factor(keys[0], brightness) * x, 0, 1)
    out = _blend(out, luminance(out).mean((1, 2, 3), keepdims=True), factor(keys[1], contrast))
    if x.shape[-1] == 3:
        out = _blend(out, luminance(out), factor(keys[2], saturation))
        out = turn_hue(out, jax.random.uniform(keys[3], shape[:3], minval=-hue, maxval=hue))
    return jnp.where(jax.random.bernoulli(keys[4], probability, shape), out, x)


def random_grayscale(key: jax.Array, x: jax.Array, probability: float = 0.2) -> jax.Array:
    """Converts each image to grey with some probability; pixels in [0, 1]."""
    return jnp.where(jax.random.bernoulli(key, probability, (x.shape[0], 1, 1, 1)), luminance(x), x)


def luminance(x: jax.Array) -> jax.Array:
    """Float [..., C] -> [..., 1], with the weights of ITU-R 601; grey images are unchanged."""
    return x @ jnp.array([[0.299], [0.587], [0.114]]) if x.shape[-1] == 3 else x


def turn_hue(x: jax.Array, turn: jax.Array) -> jax.Array:
    """Rotates the hue of RGB pixels [..., 3] in [0, 1] by `turn` [...] circles.

    Value and HSV saturation do not change.
    """
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    value = x.max(-1)
    chroma = value - x.min(-1)
    safe = jnp.where(chroma > 0, chroma, 1)  # grey has no hue, so that any value will do
    sixth = jnp.where(
        value == r, (g - b) / safe, jnp.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )
    # Along the circle, a channel rises, holds, falls and rests, each a third after the one before.
    k = (jnp.array([5.0, 3.0, 1.0]) + (sixth + 6 * turn)[..., None]) % 6
    return value[..., None] - chroma[..., None] * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)


def _blend(x: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    return jnp.clip(factor * x + (1 - factor) * other, 0, 1)


AUGMENTATIONS: dict[str, Augment] = {
    "flip": lambda key, x, black: flip(key, x),
    "padded_crop": padded_crop,
    "mean_padded_crop": lambda key, x, black: padded_crop(key, x),
    "random_erasing": lambda key, x, black: random_erasing(key, x),
    "resized_crop": lambda key, x, black: resized_crop(key, x),
}
"""Augmentations that a config may name: (key, normalised pixels, value of black) -> pixels."""


def compose(names: tuple[str, ...]) -> Augment | None:
    """Returns the composition of the named augmentations in order, or None without names.

    Raises:
      ValueError: a name is unknown.
    """
    for name in names:
        if name not in AUGMENTATIONS:
            raise ValueError(unknown("augmentation", name, AUGMENTATIONS))
    if not names:
        return None

    def augment(key: jax.Array, x: jax.Array, black: jax.Array | float) -> jax.Array:
        for i, name in enumerate(names):
            x = AUGMENTATIONS[name](jax.random.fold_in(key, i), x, black)
        return x

    return augment
