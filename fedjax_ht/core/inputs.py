"""Inputs: the rule that turns a stored sample into a model's input, and the input's shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from fedjax_ht.check.names import kind_of_value, short
from fedjax_ht.core.trees import Array, zeros_of

InputShape = Any
"""The form of one sample as a model sees it.

It is the shape of a float32 array, such as (H, W, C), a `jax.ShapeDtypeStruct` for another dtype,
or a pytree of these.
"""

CHANNELS = (1, 3)  # of an image

Preprocess = Callable[[Any], Any]
"""Stored samples with a leading axis -> the model's inputs; pure and traced.

It is a pytree, so that its arrays are arguments of compiled programs: `Pixels`, `AsStored`, or a
user's function as a `jax.tree_util.Partial`.
"""


class Pixels(NamedTuple):
    """Normalises images, bytes or floats in [0, 1], to (x - mean) / std by channel.

    Bytes are divided by 255 first.

    Attributes:
      mean, std: float32 [C], of pixels in [0, 1]; a single number applies to every channel.
    """

    mean: Any = 0.5
    std: Any = 0.5

    def __call__(self, images: Shaped[Array, "... C"]) -> Float[Array, "... C"]:
        return self.normalise(self.scaled(images))

    def scaled(self, images: Shaped[Array, "... C"]) -> Float[Array, "... C"]:
        """Stored images -> float32 of the same shape in [0, 1]."""
        pixels = images.astype(jnp.float32)
        if images.dtype == jnp.uint8:
            return pixels / 255.0
        return pixels

    def normalise(self, pixels: Float[Array, "... C"]) -> Float[Array, "... C"]:
        """Float [..., C] in [0, 1] -> the model's input."""
        return (pixels - self.mean) / self.std

    def pixels(self, x: Float[Array, "... C"]) -> Float[Array, "... C"]:
        """Inverts `normalise`: the model's input -> float [..., C] in [0, 1]."""
        return x * self.std + self.mean

    @property
    def black(self) -> Float[Array, " C"]:
        """A black pixel as a model sees it, float [C]."""
        return -self.mean / self.std


class AsStored(NamedTuple):
    """Converts floats to float32 and integers to int32: sensor windows, tokens, rows of a table."""

    def __call__(self, inputs: Any) -> Any:
        def cast(x: jax.Array) -> jax.Array:
            is_float = jnp.issubdtype(x.dtype, jnp.floating)
            return x.astype(jnp.float32 if is_float else jnp.int32)

        return jax.tree.map(cast, inputs)


class Standardised(NamedTuple):
    """Standardises floats to (x - mean) / std, float32: rows of a table, or windows by signal.

    Mean and std come from a partition's training samples (`data.standardise`). Until they are set,
    values are unchanged.

    Attributes:
      mean, std: float32, of the shape of a sample's last axes; None until they are set.
    """

    mean: Any = None
    std: Any = None

    def __call__(self, x: jax.Array) -> jax.Array:
        values = x.astype(jnp.float32)
        if self.mean is None:
            return values
        return (values - self.mean) / self.std


def usual_rule(shape: InputShape) -> Preprocess:
    """Returns a rule for samples of this shape, for traces without data; only its kind matters."""
    if is_image(shape):
        return Pixels()
    return AsStored()


def zeros(shape: InputShape, count: int = 1) -> Any:
    """Returns zeros in the form of `count` samples as a model sees them."""
    return zeros_of(abstract(shape, count))


def abstract(shape: InputShape, count: int) -> Any:
    """Returns the form of `count` samples as a model sees them, as `jax.ShapeDtypeStruct`s."""

    def batched(leaf) -> jax.ShapeDtypeStruct:
        if isinstance(leaf, tuple):
            return on_device((count, *leaf), jnp.float32)
        return on_device((count, *leaf.shape), leaf.dtype)

    return jax.tree.map(batched, shape, is_leaf=_is_shape)


def on_device(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Returns the form that a host array has on a device.

    Numbers have at most 32 bits, unless jax is set to 64; since jax 0.11 other dtypes give a
    warning.
    """
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))


def shape_of(samples: Any) -> InputShape:
    """Returns the `InputShape` of samples as a model sees them, with a leading sample axis.

    Args:
      samples: arrays or `jax.ShapeDtypeStruct`s, or a pytree of them.
    """

    def unbatched(x):
        shape = tuple(x.shape[1:])
        if x.dtype == jnp.float32:
            return shape
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(unbatched, samples)


def plain(shape: InputShape) -> InputShape:
    """Converts an array's shape from a list to a tuple; returns other shapes unchanged.

    Raises:
      ValueError: the argument is not a shape.
    """
    if isinstance(shape, list | tuple) and all(isinstance(n, int | np.integer) for n in shape):
        return tuple(map(int, shape))
    leaves = jax.tree.leaves(shape, is_leaf=_is_shape)
    if not leaves or not all(map(_is_shape, leaves)):
        found = short(shape) if isinstance(shape, list | tuple) else kind_of_value(shape)
        raise ValueError(
            f"input_shape is {found}; it must be the shape of one sample, such as "
            "dataset.input_shape or (28, 28, 1)"
        )
    return shape


def is_array(shape: InputShape) -> bool:
    """Returns whether a sample is one float array."""
    return type(shape) is tuple and all(isinstance(n, int) for n in shape)


def is_image(shape: InputShape) -> bool:
    """Returns whether a sample is one float image of one or three channels."""
    return is_array(shape) and len(shape) == 3 and shape[-1] in CHANNELS


def looks_like_image(shape: tuple[int, ...]) -> bool:
    """Returns whether two axes may be an image's height and width: neither is far longer."""
    height, width = shape
    return 0 < max(height, width) <= _LONGEST_SIDE * min(height, width)


_LONGEST_SIDE = 4  # times the shorter one; windows of sensors have far more steps than signals


def channels_first(shape: tuple[int, ...]) -> bool:
    """Returns whether images of this shape (four axes) are [N, C, H, W].

    Images have one or three channels; if both orders fit, [N, H, W, C] is assumed.
    """
    return shape[-1] not in CHANNELS and shape[1] in CHANNELS


def image_shape(shape: InputShape, subject: str) -> tuple[int, int, int]:
    """Returns the shape (H, W, C) of images.

    Args:
      shape: the shape of one sample as a model sees it.
      subject: the method that needs images; the message begins with it.

    Raises:
      ValueError: the shape is not that of a float image with one or three channels.
    """
    if is_image(shape):
        return shape
    raise ValueError(
        f"{subject} needs images, float [H, W, 1 or 3]; these models take {described(shape)}"
    )


def pixels_of(preprocess: Preprocess, subject: str) -> Pixels:
    """Returns the `Pixels` of a set of images.

    Args:
      preprocess: `Pixels`, or a rule around it, such as `data.shift.Rotated`, with it as `rule`.
      subject: the method that converts between pixels and model inputs; the message begins with it.

    Raises:
      ValueError: the rule neither is nor wraps `Pixels`.
    """
    rule = getattr(preprocess, "rule", preprocess)
    if not isinstance(rule, Pixels):
        raise ValueError(
            f"{subject} needs the normalisation of pixels: give the dataset "
            "preprocess=fl.Pixels(mean, std)"
        )
    return rule


def described(shape: InputShape) -> str:
    """Describes a shape in a message: "(32, 32, 3)", "int32 (200,)", "((200,), int32 ())"."""
    texts = []
    for leaf in jax.tree.leaves(shape, is_leaf=_is_shape):
        texts.append(str(leaf) if isinstance(leaf, tuple) else f"{leaf.dtype} {leaf.shape}")
    if len(texts) == 1:
        return texts[0]
    return f"({', '.join(texts)})"


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct) or is_array(x)
