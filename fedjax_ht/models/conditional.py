"""The conditional image generator of DFRD (NeurIPS 2023).

Noise is merged with a trainable embedding of the label, then come transposed 4x4 convolutions as in
DCGAN (Radford et al., ICLR 2016).
"""

import math
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.models.norm import Norm
from fedjax_ht.ops import conv_transpose2d

Merge = Literal["mul", "add", "cat", "ncat", "none"]
"""How noise z and embedding E(y), both of width d, become the generator's input.

mul: z * E(y). add: z + E(y). cat: [z, E(y)]. ncat: [z, one-hot y]. none: z, the label is left out.
"""

CHANNELS = (512, 256, 128, 64)  # of the maps of 4, 8, 16 and 32 pixels
STD = 0.02  # of the initial kernels, and of the norms' scales about 1
EMBEDDED = ("mul", "add", "cat")  # merges with an embedding


class Generated(NamedTuple):
    """Images of a generator, and the inputs that they were made from.

    Attributes:
      images: float [B, H, W, channels] in [-1, 1], taken for normalised ones.
      merged: float [B, D], the generator's input.
      embedding: float [B, d], E(y); () where the merge has none.
    """

    images: jax.Array
    merged: jax.Array
    embedding: Any


class TransposedConv(nn.Module):
    """A transposed 4x4 convolution without bias; its parameter is "kernel" [4, 4, C, features]."""

    features: int
    stride: int
    padding: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _kernel, (4, 4, x.shape[-1], self.features))
        return conv_transpose2d(x, kernel, self.stride, self.padding)


class ConditionalGenerator(nn.Module):
    """A generator of images of at most 64 pixels a side, from noise and labels.

    A first transposed convolution makes maps of 4x4 pixels, each further one doubles them: three
    for 32 pixels, four for 64. Other sizes are cut out of the middle of the next larger one (28 of
    32). Norms are ordinary batch norms, of the batch in training and of running statistics
    otherwise; there is none behind the first layer.

    Attributes:
      num_classes: number of classes, C.
      noise_dim: d, numbers of a noise vector.
      image_shape: shape of the images, (H, W, channels).
      merge: the rule that combines noise and label, see `Merge`.
    """

    num_classes: int
    noise_dim: int
    image_shape: tuple[int, int, int]
    merge: Merge = "mul"

    @nn.compact
    def __call__(self, noise: jax.Array, labels: jax.Array, train: bool) -> Generated:
        """Returns `Generated` of noise float [B, d] and labels int [B]."""
        merged, embedding = self._merged(noise, labels)
        height, width, channels = self.image_shape
        doublings = num_doublings(self.image_shape)
        x = nn.relu(TransposedConv(CHANNELS[0], 1, 0, name="conv1")(merged[:, None, None]))
        for i in range(1, doublings):
            x = TransposedConv(CHANNELS[i], 2, 1, name=f"conv{i + 1}")(x)
            x = nn.relu(Norm("batch", scale_init=_around_one, name=f"norm{i + 1}")(x, train))
        x = jnp.tanh(TransposedConv(channels, 2, 1, name=f"conv{doublings + 1}")(x))
        top, left = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
        return Generated(x[:, top : top + height, left : left + width], merged, embedding)

    def _merged(self, noise: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array | tuple]:
        """Returns the generator's input, and the embedding or (); see `Generated`."""
        if self.merge == "none":
            return noise, ()
        if self.merge == "ncat":
            one_hot = jax.nn.one_hot(labels, self.num_classes)
            return jnp.concatenate([noise, one_hot], -1), ()
        table = self.param(
            "embedding", nn.initializers.normal(1.0), (self.num_classes, self.noise_dim)
        )
        embedding = table[labels]
        if self.merge == "cat":
            return jnp.concatenate([noise, embedding], -1), embedding
        merged = noise * embedding if self.merge == "mul" else noise + embedding
        return merged, embedding


def num_doublings(image_shape: tuple[int, int, int]) -> int:
    """Returns how often 4 pixels are doubled until an image of this shape fits, at least once.

    Raises:
      ValueError: the image is larger than 64 pixels.
    """
    side = max(image_shape[:2])
    if side > 4 * 2 ** len(CHANNELS):
        raise ValueError(
            f"images have {side} pixels a side; the generator makes at most "
            f"{4 * 2 ** len(CHANNELS)}; set a smaller dataset.image_size"
        )
    return max(1, math.ceil(math.log2(side / 4)))


def _kernel(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    # Drawn flat: a four-dimensional draw compiles far slower on CPU.
    return STD * jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def _around_one(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    return 1 + STD * jax.random.normal(key, shape, dtype)
