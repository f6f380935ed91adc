"""What a sample is: how a stored one becomes what a model sees, and of what shape that is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

InputShape = Any
"""Of one sample as a model sees it: the shape of a float32 array, such as (H, W, C); a
`jax.ShapeDtypeStruct` where it is of another dtype; or a pytree of these."""

CHANNELS = (1, 3)  # of an image

Preprocess = Callable[[Any], Any]
"""Stored samples with a leading axis -> what a model sees of them, pure and traced: a pytree, so
that its arrays are arguments of what is compiled. `Pixels`, `AsStored`, or a function of one's own
as a `jax.tree_util.Partial`."""


class Pixels(NamedTuple):
    """Images: bytes, or floats in [0, 1], to (x - mean) / std by channel; bytes are divided by 255
    before.

    Attributes:
      mean, std: float32 [C], of pixels in [0, 1]; one number serves every channel.
    """

    mean: Any = 0.5
    std: Any = 0.5

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.normalise(self.scaled(images))

    def scaled(self, images: jax.Array) -> jax.Array:
        """Images as they are stored -> float32 of the same shape in [0, 1]."""
        pixels = images.astype(jnp.float32)
        return pixels / 255.0 if images.dtype == jnp.uint8 else pixels

    def normalise(self, pixels: jax.Array) -> jax.Array:
        """float [..., C] in [0, 1] -> what a model sees."""
        return (pixels - self.mean) / self.std

    def pixels(self, x: jax.Array) -> jax.Array:
        """What a model sees -> float [..., C] in [0, 1]."""
        return x * self.std + self.mean

    @property
    def black(self) -> jax.Array:
        """What a model sees of a black pixel, float [C]."""
        return -self.mean / self.std


class AsStored(NamedTuple):
    """Floats as float32 and integers as int32: sensor windows, tokens, rows of a table."""

    def __call__(self, inputs: Any) -> Any:
        def one(x: jax.Array) -> jax.Array:
            return x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)

        return jax.tree.map(one, inputs)


def usual_rule(shape: InputShape) -> Preprocess:
    """What a set of such samples is preprocessed by, where only the kind of rule matters: a trace
    without data."""
    return Pixels() if is_image(shape) else AsStored()


def zeros(shape: InputShape, count: int = 1) -> Any:
    """What a model sees of `count` samples, all zero."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract(shape, count))


def abstract(shape: InputShape, count: int) -> Any:
    """As `zeros`, `jax.ShapeDtypeStruct`s instead of arrays."""

    def one(leaf) -> jax.ShapeDtypeStruct:
        own, dtype = (leaf, jnp.float32) if isinstance(leaf, tuple) else (leaf.shape, leaf.dtype)
        return on_device((count, *own), dtype)

    return jax.tree.map(one, shape, is_leaf=_is_shape)


def on_device(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Returns the form that an array of the host has on a device: numbers of at most 32 bits,
    unless jax is set to 64. From jax 0.11 on others are warned of."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))


def shape_of(samples: Any) -> InputShape:
    """The `InputShape` of what a model sees, arrays (or `jax.ShapeDtypeStruct`s) with a leading
    sample axis."""

    def one(x):
        own = tuple(x.shape[1:])
        return own if x.dtype == jnp.float32 else jax.ShapeDtypeStruct(own, x.dtype)

    return jax.tree.map(one, samples)


def plain(shape: InputShape) -> InputShape:
    """With a tuple where a list was given for the shape of an array."""
    return (
        tuple(shape)
        if isinstance(shape, list) and all(isinstance(n, int) for n in shape)
        else shape
    )


def is_array(shape: InputShape) -> bool:
    """Whether a sample is one float array."""
    return type(shape) is tuple and all(isinstance(n, int) for n in shape)


def is_image(shape: InputShape) -> bool:
    """Whether a sample is one float image of one or three channels."""
    return is_array(shape) and len(shape) == 3 and shape[-1] in CHANNELS


def channels_first(shape: tuple[int, ...]) -> bool:
    """Returns whether images of this shape, four axes, are [N, C, H, W] by their channels, of which
    there are one or three; where both orders would do they are [N, H, W, C]."""
    return shape[-1] not in CHANNELS and shape[1] in CHANNELS


def image_shape(shape: InputShape, who: str) -> tuple[int, int, int]:
    """(H, W, C) of images.

    Args:
      shape: what a model sees of one sample.
      who: that needs images, for the message.

    Raises:
      ValueError: it is no float image of one or three channels.
    """
    if is_image(shape):
        return shape
    raise ValueError(
        f"{who} needs images, float [H, W, 1 or 3]; these models take {described(shape)}"
    )


def pixels_of(preprocess: Preprocess, who: str) -> Pixels:
    """The rule of a set of images; of one that does more, such as `data.shift.Rotated`, the `rule`
    that it has.

    Raises:
      ValueError: it is no `Pixels`, and has none; `who` needs it to go from pixels to what a model
        sees, or back.
    """
    rule = getattr(preprocess, "rule", preprocess)
    if not isinstance(rule, Pixels):
        raise ValueError(
            f"{who} needs to know what a pixel is: give the dataset preprocess=fl.Pixels(mean, std)"
        )
    return rule


def described(shape: InputShape) -> str:
    """For messages: "(32, 32, 3)", "int32 (200,)", "((200,), int32 ())"."""
    leaves = jax.tree.leaves(shape, is_leaf=_is_shape)
    texts = [str(x) if isinstance(x, tuple) else f"{x.dtype} {x.shape}" for x in leaves]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct) or is_array(x)
