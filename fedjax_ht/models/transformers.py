"""HtFLlib's text transformer: torch's post-norm encoder behind a class token.

The encoder is that of Vaswani et al., NeurIPS 2017. It takes token ids int32 [B, L], of which 0 is
padding.

1. Padding is masked: nothing attends to it, and its embedding is zero and is not learned. HtFLlib
   masks nothing, so that there a text's features depend on how much padding stands behind it.
2. The hidden layer of the perceptrons is as wide as the tokens, dropout is 0.5 everywhere, and the
   class token is put in front behind the positions, so that it has none: as in HtFLlib.
3. Every layer draws weights of its own. torch's `TransformerEncoder` copies one layer, so that all
   begin alike.
4. Dropout needs a key, which methods give in training.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.models.text import Embedding

LAYER_NORM_EPSILON = 1e-5
DROPOUT = 0.5
EMBEDDING_BOUND = 0.1


class MaskedAttention(nn.Module):
    """softmax(Q K^T / sqrt(D / heads)) V of each head over the seen tokens, then a linear layer.

    float [B, T, D] and seen bool [B, T] -> [B, T, D]. Parameters as of `vits.SelfAttention`,
    initialised as torch does.
    """

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array, dropping: bool) -> jax.Array:
        batch, tokens, width = x.shape
        qkv = nn.Dense(3 * width, kernel_init=nn.initializers.xavier_uniform(), name="in_proj")(x)
        q, k, v = jnp.moveaxis(qkv.reshape(batch, tokens, 3, self.heads, -1), (2, 3), (0, 2))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k)
        # No row is all -inf, which would be NaN: the class token is always seen.
        weights = nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf))
        weights = nn.Dropout(self.dropout, deterministic=not dropping)(weights)
        mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, v)
        # U(+-1/sqrt(D)): torch's default for a linear layer, but with zero biases.
        return Linear(width, "torch_zero_bias", name="out_proj")(mixed.reshape(x.shape))


class PostNormLayer(nn.Module):
    """x = norm(x + attention(x)), then x = norm(x + perceptron(x)).

    torch's `TransformerEncoderLayer` with ReLU: float [B, T, D] and seen bool [B, T] -> [B, T, D].
    """

    heads: int
    hidden: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array, dropping: bool) -> jax.Array:
        drop = nn.Dropout(self.dropout, deterministic=not dropping)
        x = _norm("norm1")(
            x + drop(MaskedAttention(self.heads, self.dropout, name="self_attn")(x, seen, dropping))
        )
        y = drop(nn.relu(Linear(self.hidden, name="linear1")(x)))
        return _norm("norm2")(x + drop(Linear(x.shape[-1], name="linear2")(y)))


def _norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(LAYER_NORM_EPSILON, use_fast_variance=False, name=name)


def positions(length: int, width: int) -> np.ndarray:
    """Returns sinusoids, float64 [length, width].

    Column 2 i is sin(t / 10000^(2 i / width)), and the cosine stands beside it.
    """
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, -1)[:, :width]


class TextTransformer(nn.Module):
    """Embeddings with sinusoidal positions, a learned class token in front, post-norm layers.

    Features are the class token's output.

    Attributes:
      vocabulary: number of token ids, 0 among them.
      width: width of the tokens and of the features; `heads` must divide it.
      layers, heads: number of the encoder's layers, and of the heads of each.
      dropout: rate of dropout on positions, attention and perceptrons.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    dropout: float = DROPOUT

    @nn.compact
    def __call__(
        self, tokens: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        dropping = train and self.has_rng("dropout")
        x = Embedding(self.vocabulary, self.width, EMBEDDING_BOUND, name="embedding")(tokens)
        x = x + jnp.asarray(positions(*x.shape[1:]), x.dtype)
        x = nn.Dropout(self.dropout, deterministic=not dropping)(x)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], axis=1)
        # True for the class token in front.
        seen = jnp.pad(tokens != 0, ((0, 0), (1, 0)), constant_values=True)
        layer = PostNormLayer(self.heads, self.width, self.dropout, name="layers_blocks")
        return scan_blocks(layer, x, seen, dropping, length=self.layers)[:, 0]


def text_transformer(
    num_classes: int, vocabulary: int, feature_dim: int = 512, heads: int = 8, layers: int = 2
) -> SplitModel:
    """Builds HtFLlib's text transformer with a linear head.

    Args:
      num_classes: number of classes, the outputs of the head.
      vocabulary: number of token ids, 0 among them.
      feature_dim: width of tokens and features.
      heads, layers: number of heads of each of the encoder's layers, and number of the layers.

    Raises:
      ValueError: the heads do not divide the width.
    """
    if feature_dim % heads:
        raise ValueError(
            f"feature_dim is {feature_dim}; it must be a multiple of the transformer's {heads} "
            "heads"
        )
    return SplitModel(
        TextTransformer(vocabulary, feature_dim, layers, heads), Linear(num_classes), stateful=True
    )
