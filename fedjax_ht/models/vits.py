"""Vision transformers (Dosovitskiy et al., ICLR 2021) as torchvision defines and initialises them.

The equal encoder layers are scanned, so that twelve compile as one.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.models.split import SplitModel, vit_head
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.ops import adaptive_pool

LAYER_NORM_EPSILON = 1e-6


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its size, as one matrix product.

    float [B, H, W, C] -> [B, patches, width].

    Parameters "kernel" [patch, patch, C, width] with variance 1 / fan_in, and "bias" [width],
    zeros. (torchvision cuts the normal distribution at +-2, which is 8 standard deviations or
    more.)
    """

    patch: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, channels = x.shape
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"images of {height}x{width} pixels do not split into patches of "
                f"{self.patch}x{self.patch}; resize them"
            )
        fan_in = self.patch * self.patch * channels
        normal = nn.initializers.normal(fan_in**-0.5)
        shape = (self.patch, self.patch, channels, self.width)
        # Drawn as a matrix: a four-dimensional draw compiles slowly on CPU.
        kernel = self.param("kernel", lambda key: normal(key, (fan_in, self.width)).reshape(shape))
        x = x.reshape(
            batch, height // self.patch, self.patch, width // self.patch, self.patch, channels
        )
        x = x.swapaxes(2, 3).reshape(batch, -1, fan_in)
        return x @ kernel.reshape(fan_in, self.width) + self.param(
            "bias", nn.initializers.zeros, (self.width,)
        )


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D / heads)) V of each head, then a linear layer.

    float [B, T, D] -> [B, T, D].

    One matrix "in_proj" [D, 3 D] makes Q, K and V, in this order, each with its heads one after
    another.
    """

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, tokens, width = x.shape
        qkv = nn.Dense(3 * width, kernel_init=nn.initializers.xavier_uniform(), name="in_proj")(x)
        q, k, v = jnp.moveaxis(qkv.reshape(batch, tokens, 3, self.heads, -1), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        # U(+-1/sqrt(D)): torch's default for a linear layer, but with zero biases.
        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        return nn.Dense(width, kernel_init=uniform, name="out_proj")(mixed.reshape(x.shape))


class EncoderLayer(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and with a shortcut.

    float [B, T, D] -> [B, T, D].
    """

    heads: int
    mlp_width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + SelfAttention(self.heads, name="self_attention")(_layer_norm("ln_1")(x))
        y = nn.gelu(_mlp(self.mlp_width, "mlp_0")(_layer_norm("ln_2")(x)), approximate=False)
        return x + _mlp(x.shape[-1], "mlp_3")(y)


def _layer_norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(LAYER_NORM_EPSILON, use_fast_variance=False, name=name)


def _mlp(width: int, name: str) -> nn.Dense:
    xavier, tiny = nn.initializers.xavier_uniform(), nn.initializers.normal(1e-6)
    return nn.Dense(width, kernel_init=xavier, bias_init=tiny, name=name)


class ViT(nn.Module):
    """Patches and a class token with learned positions, pre-norm encoder layers, a last LayerNorm.

    Attributes:
      patch: side of a patch in pixels; it must divide the image's sides.
      layers, heads: number of the encoder's layers, and of the heads of each; heads must divide
        `width`.
      width, mlp_width: width of a token, and of the perceptrons' hidden layer.
      feature_dim: the class token is pooled to this many features.
    """

    patch: int
    layers: int
    heads: int
    width: int
    mlp_width: int
    feature_dim: int = 512

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]."""
        x = PatchEmbedding(self.patch, self.width, name="conv_proj")(x)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], axis=1)
        x = x + self.param("pos_embedding", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = scan_blocks(
            EncoderLayer(self.heads, self.mlp_width, name="layers_blocks"), x, length=self.layers
        )
        return adaptive_pool(_layer_norm("ln")(x[:, 0]), self.feature_dim)


class ViTSize(NamedTuple):
    """The sizes of a vision transformer, see `ViT`."""

    patch: int
    layers: int
    heads: int
    width: int
    mlp_width: int


VITS = {
    # small enough to train from scratch on images of 32x32 pixels
    "vit_small": ViTSize(patch=4, layers=6, heads=3, width=192, mlp_width=768),
    "vit_b16": ViTSize(patch=16, layers=12, heads=12, width=768, mlp_width=3072),
    "vit_b32": ViTSize(patch=32, layers=12, heads=12, width=768, mlp_width=3072),
}


def vit(name: str, num_classes: int, feature_dim: int = 512) -> SplitModel:
    """Builds a vision transformer as extractor, with a two-layer head (`vit_head`).

    Args:
      name: the transformer's name, one of `VITS`.
      num_classes: number of classes, the outputs of the head, whose hidden layer is as wide as the
        tokens.
      feature_dim: K, the width of the features.

    Raises:
      ValueError: there is no vision transformer of this name.
    """
    if name not in VITS:
        raise ValueError(f"unknown vision transformer {name!r}; there are {', '.join(VITS)}")
    return SplitModel(ViT(*VITS[name], feature_dim), vit_head(num_classes, VITS[name].width))
