"""Vision transformers (Dosovitskiy et al., ICLR 2021) with the layers of Hugging Face's files.

Queries, keys and values are layers of their own here, which adapters can be put on one by one;
`models.vits` has torchvision's. There is no dropout, and no pooler: features are the class token's.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.lab.weights.hugging_face.layers import ACTIVATIONS, attend, encoder_sizes, layer_norm
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.settings import Settings
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.models.vits import PatchEmbedding


class ViTLayer(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside a shortcut.

    float [B, T, D] -> [B, T, D].
    """

    heads: int
    hidden: int
    epsilon: float
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = layer_norm(self.epsilon, "layernorm_before")(x)
        q, k, v = (Linear(width, name=name)(y) for name in ("query", "key", "value"))
        x = x + Linear(width, name="attention_output")(attend(q, k, v, self.heads))
        y = layer_norm(self.epsilon, "layernorm_after")(x)
        y = ACTIVATIONS[self.activation](Linear(self.hidden, name="intermediate")(y))
        return x + Linear(width, name="output")(y)


class HuggingFaceViT(nn.Module):
    """Patches and a class token with learned positions, pre-norm layers, a last LayerNorm.

    Attributes:
      image: shape (H, W, C) of the images.
      patch: side of a patch in pixels.
      width: width of the tokens and of the features; `heads` must divide it.
      layers, heads, hidden: number of layers, of the heads of each, and width of its perceptron.
      epsilon: number that is added to the variances of norms.
      activation: name of the perceptrons' activation, one of `ACTIVATIONS`.
    """

    image: tuple[int, int, int]
    patch: int
    width: int
    layers: int
    heads: int
    hidden: int
    epsilon: float = 1e-12
    activation: str = "gelu"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features float [B, width] of images x [B, H, W, C]."""
        x = PatchEmbedding(self.patch, self.width, name="patch_embeddings")(x)
        token = self.param("cls_token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], axis=1)
        shape = (1, *x.shape[1:])
        x = x + self.param("position_embeddings", nn.initializers.normal(0.02), shape)
        layer = ViTLayer(
            self.heads, self.hidden, self.epsilon, self.activation, name="layers_blocks"
        )
        x = scan_blocks(layer, x, length=self.layers)
        return layer_norm(self.epsilon, "layernorm")(x[:, 0])


def vit(settings: Settings) -> HuggingFaceViT:
    """Builds the extractor of a config.json."""
    settings.require("qkv_bias", True)
    patch = settings.count("patch_size", 16)
    side = settings.count("image_size", 224, divisor=patch)
    return HuggingFaceViT(
        image=(side, side, settings.count("num_channels", 3)),
        patch=patch,
        **encoder_sizes(settings),
    )


NAMES = Names(
    layer="encoder.layer.{}.",
    modules={
        "cls_token": "embeddings.cls_token",
        "position_embeddings": "embeddings.position_embeddings",
        "patch_embeddings": "embeddings.patch_embeddings.projection",
        "layernorm": "layernorm",
        "layernorm_before": "layernorm_before",
        "query": "attention.attention.query",
        "key": "attention.attention.key",
        "value": "attention.attention.value",
        "attention_output": "attention.output.dense",
        "layernorm_after": "layernorm_after",
        "intermediate": "intermediate.dense",
        "output": "output.dense",
    },
    prefix="vit.",
    unused=r"pooler\.|embeddings\.mask_token$|classifier\.",
    heads=("classifier",),
)
