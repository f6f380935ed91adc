"""Transformers with the layers and names of Hugging Face files, as feature extractors.

* BERT (Devlin et al., NAACL 2019) takes token ids int32 [B, L] that begin with the class token; 0
  is padding. A text is one segment. Features are the class token's, or the mean of all tokens', as
  the folders of sentence encoders specify.
* ViT (Dosovitskiy et al., ICLR 2021) takes images; features are the class token's. Queries, keys
  and values are separate layers, so that each can have adapters; `models.vits` has torchvision's.
* GPT-2 (Radford et al., 2019) and Llama (Touvron et al., 2023) take token ids int32 [B, L], padded
  at the end with 0; no token sees a later one. Features are those of a text's last token that is
  not 0. A head with one class per token id predicts the next token.

There is no dropout, and no pooler.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.models.text import last_token
from fedjax_ht.models.vits import PatchEmbedding

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
}
"""Name in config.json -> function; "gelu_new" and "gelu_pytorch_tanh" are the same, by tanh."""


class Sizes(NamedTuple):
    """The sizes of a transformer's layers.

    Attributes:
      width: width of the tokens and of the features; except in Llama, `heads` must divide it.
      layers, heads, hidden: number of layers, heads per layer, and width of its perceptron.
      epsilon: number added to the variances, or mean squares, of norms.
      activation: name of the perceptrons' activation, one of `ACTIVATIONS`.
      key_heads, head_size: number of heads of keys and values, and the width of one (Llama).
      base: base of the rotations' wavelengths (Llama).
    """

    width: int
    layers: int
    heads: int
    hidden: int
    epsilon: float
    activation: str
    key_heads: int = 0
    head_size: int = 0
    base: float = 0.0


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, heads: int, *, seen: jax.Array | None = None
) -> jax.Array:
    """Computes softmax(Q K^T / sqrt(D / heads)) V of each head.

    Args:
      q: queries, float [B, T, D], with concatenated heads.
      k, v: keys and values, float [B, S, E]; with E < D, each of their heads serves several
        consecutive heads of q (grouped queries).
      heads: number of q's heads.
      seen: pairs that may attend, bool, broadcast to [B, 1, T, S]; None for all.

    Returns:
      float [B, T, D].
    """
    size = q.shape[-1] // heads
    q, k, v = (x.reshape(*x.shape[:2], -1, size) for x in (q, k, v))
    repeats = heads // k.shape[2]
    k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5
    if seen is not None:
        # Finite: a row of padding sees nothing, and would be NaN with -inf everywhere.
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
    return mixed.reshape(*mixed.shape[:2], -1)


def causal(length: int) -> jax.Array:
    """Returns the causal mask of a decoder, bool [1, 1, length, length]."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def embedding(rows: int, width: int, name: str) -> nn.Embed:
    """Builds a table of `rows` learned vectors, normal with standard deviation 0.02."""
    return nn.Embed(rows, width, embedding_init=nn.initializers.normal(0.02), name=name)


def layer_norm(epsilon: float, name: str) -> nn.LayerNorm:
    """Builds a LayerNorm with a two-pass variance, as in torch."""
    return nn.LayerNorm(epsilon, use_fast_variance=False, name=name)


def positions_of(tokens: jax.Array, positions: int) -> jax.Array:
    """Returns the positions of tokens [B, L], int32 [L].

    Raises:
      ValueError: the texts are longer than the model's positions.
    """
    length = tokens.shape[1]
    if length > positions:
        raise ValueError(
            f"texts have {length} tokens, but the model has {positions} positions; set "
            f"dataset.text_length to at most {positions}"
        )
    return jnp.arange(length)


class BertLayer(nn.Module):
    """x = norm(x + attention(x)), then x = norm(x + perceptron(x)).

    float [B, L, D] and seen bool [B, L] -> [B, L, D].
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        sizes, width = self.sizes, x.shape[-1]
        q, k, v = (Linear(width, name=name)(x) for name in ("query", "key", "value"))
        mixed = attend(q, k, v, sizes.heads, seen=seen[:, None, None])
        x = x + Linear(width, name="attention_output")(mixed)
        x = layer_norm(sizes.epsilon, "attention_norm")(x)
        y = ACTIVATIONS[sizes.activation](Linear(sizes.hidden, name="intermediate")(x))
        return layer_norm(sizes.epsilon, "output_norm")(x + Linear(width, name="output")(y))


class Bert(nn.Module):
    """Embeddings of words and positions, post-norm layers, and the features of a text.

    Attributes:
      vocabulary, positions, segments: number of token ids, of positions, and of segment kinds.
      sizes: sizes of the layers.
      pooling: "cls" for the features of the class token, "mean" for the mean over the tokens.
      normalised: whether features are divided by their length.
    """

    vocabulary: int
    positions: int
    segments: int
    sizes: Sizes
    pooling: Literal["cls", "mean"] = "cls"
    normalised: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        width, seen = self.sizes.width, tokens != 0
        places = positions_of(tokens, self.positions)
        x = embedding(self.vocabulary, width, "word_embeddings")(tokens)
        x = x + embedding(self.segments, width, "token_type_embeddings")(jnp.zeros(1, int))
        x = x + embedding(self.positions, width, "position_embeddings")(places)
        x = layer_norm(self.sizes.epsilon, "embeddings_norm")(x)
        layer = BertLayer(self.sizes, name="layers_blocks")
        x = scan_blocks(layer, x, seen, length=self.sizes.layers)
        if self.pooling == "cls":
            return _of_length_one(x[:, 0], self.normalised)
        count = jnp.maximum(seen.sum(1), 1)[:, None]
        return _of_length_one(jnp.where(seen[..., None], x, 0).sum(1) / count, self.normalised)


BERT_NAMES = Names(
    layer="encoder.layer.{}.",
    modules={
        "word_embeddings": "embeddings.word_embeddings",
        "position_embeddings": "embeddings.position_embeddings",
        "token_type_embeddings": "embeddings.token_type_embeddings",
        "embeddings_norm": "embeddings.LayerNorm",
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention_output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "intermediate": "intermediate.dense",
        "output": "output.dense",
        "output_norm": "output.LayerNorm",
    },
    prefix="bert.",
    unused=r"pooler\.|embeddings\.position_ids$|cls\.|classifier\.",
)


class ViTLayer(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and with a residual connection.

    float [B, T, D] -> [B, T, D].
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes, width = self.sizes, x.shape[-1]
        y = layer_norm(sizes.epsilon, "layernorm_before")(x)
        q, k, v = (Linear(width, name=name)(y) for name in ("query", "key", "value"))
        x = x + Linear(width, name="attention_output")(attend(q, k, v, sizes.heads))
        y = layer_norm(sizes.epsilon, "layernorm_after")(x)
        y = ACTIVATIONS[sizes.activation](Linear(sizes.hidden, name="intermediate")(y))
        return x + Linear(width, name="output")(y)


class HuggingFaceViT(nn.Module):
    """Patches and a class token with learned positions, pre-norm layers, a last LayerNorm.

    Attributes:
      image: shape (H, W, C) of the images.
      patch: side of a patch in pixels.
      sizes: sizes of the layers.
    """

    image: tuple[int, int, int]
    patch: int
    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features float [B, width] of images x [B, H, W, C]."""
        width = self.sizes.width
        x = PatchEmbedding(self.patch, width, name="patch_embeddings")(x)
        token = self.param("cls_token", nn.initializers.zeros, (1, 1, width))
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, width)), x], axis=1)
        shape = (1, *x.shape[1:])
        x = x + self.param("position_embeddings", nn.initializers.normal(0.02), shape)
        x = scan_blocks(ViTLayer(self.sizes, name="layers_blocks"), x, length=self.sizes.layers)
        return layer_norm(self.sizes.epsilon, "layernorm")(x[:, 0])


VIT_NAMES = Names(
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


class Gpt2Layer(nn.Module):
    """Causal attention and a perceptron, each after a LayerNorm and with a residual connection.

    float [B, L, D] -> [B, L, D]. "c_attn" makes Q, K and V, in this order.
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes, width = self.sizes, x.shape[-1]
        y = layer_norm(sizes.epsilon, "ln_1")(x)
        q, k, v = jnp.split(Linear(3 * width, name="c_attn")(y), 3, axis=-1)
        mixed = attend(q, k, v, sizes.heads, seen=causal(x.shape[1]))
        x = x + Linear(width, name="attn_c_proj")(mixed)
        y = Linear(sizes.hidden, name="c_fc")(layer_norm(sizes.epsilon, "ln_2")(x))
        return x + Linear(width, name="mlp_c_proj")(ACTIVATIONS[sizes.activation](y))


class Gpt2(nn.Module):
    """Embeddings of tokens and positions, pre-norm layers, a last LayerNorm.

    Attributes:
      vocabulary, positions: number of token ids and of positions.
      sizes: sizes of the layers.
      normalised: whether features are divided by their length.
    """

    vocabulary: int
    positions: int
    sizes: Sizes
    normalised: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        places = positions_of(tokens, self.positions)
        x = embedding(self.vocabulary, self.sizes.width, "wte")(tokens)
        x = x + embedding(self.positions, self.sizes.width, "wpe")(places)
        x = scan_blocks(Gpt2Layer(self.sizes, name="layers_blocks"), x, length=self.sizes.layers)
        x = _at_the_end(layer_norm(self.sizes.epsilon, "ln_f")(x), tokens)
        return _of_length_one(x, self.normalised)


GPT2_NAMES = Names(
    layer="h.{}.",
    modules={
        "wte": "wte",
        "wpe": "wpe",
        "ln_f": "ln_f",
        "ln_1": "ln_1",
        "c_attn": "attn.c_attn",
        "attn_c_proj": "attn.c_proj",
        "ln_2": "ln_2",
        "c_fc": "mlp.c_fc",
        "mlp_c_proj": "mlp.c_proj",
    },
    prefix="transformer.",
    unused=r"h\.\d+\.attn\.(masked_)?bias$|lm_head\.|score\.",
    transposed=False,
    heads=("score", "lm_head"),
    tied="wte",
)


class LlamaLayer(nn.Module):
    """Causal attention and a gated perceptron, each after an RMSNorm and with a residual.

    float [B, L, D] -> [B, L, D]. Positions are rotary, and no layer has a bias.
    """

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes, width = self.sizes, x.shape[-1]
        y = _rms_norm(sizes.epsilon, "input_layernorm")(x)
        q = _unbiased(sizes.heads * sizes.head_size, "q_proj")(y)
        k = _unbiased(sizes.key_heads * sizes.head_size, "k_proj")(y)
        v = _unbiased(sizes.key_heads * sizes.head_size, "v_proj")(y)
        q, k = (rotated(z, sizes.head_size, sizes.base) for z in (q, k))
        mixed = attend(q, k, v, sizes.heads, seen=causal(x.shape[1]))
        x = x + _unbiased(width, "o_proj")(mixed)
        y = _rms_norm(sizes.epsilon, "post_attention_layernorm")(x)
        gate = ACTIVATIONS[sizes.activation](_unbiased(sizes.hidden, "gate_proj")(y))
        return x + _unbiased(width, "down_proj")(gate * _unbiased(sizes.hidden, "up_proj")(y))


class Llama(nn.Module):
    """Embeddings of tokens, pre-norm layers, a last RMSNorm; attributes as for `Gpt2`."""

    vocabulary: int
    positions: int
    sizes: Sizes
    normalised: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        positions_of(tokens, self.positions)
        x = embedding(self.vocabulary, self.sizes.width, "embed_tokens")(tokens)
        x = scan_blocks(LlamaLayer(self.sizes, name="layers_blocks"), x, length=self.sizes.layers)
        x = _at_the_end(_rms_norm(self.sizes.epsilon, "norm")(x), tokens)
        return _of_length_one(x, self.normalised)


LLAMA_NAMES = Names(
    layer="layers.{}.",
    modules={
        "embed_tokens": "embed_tokens",
        "norm": "norm",
        "input_layernorm": "input_layernorm",
        **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
        "post_attention_layernorm": "post_attention_layernorm",
        **{f"{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    },
    prefix="model.",
    unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq$|lm_head\.|score\.",
    heads=("score", "lm_head"),
    tied="embed_tokens",
)


def rotated(x: jax.Array, size: int, base: float) -> jax.Array:
    """Rotates each head's pairs (i, i + size / 2) by angles that grow with the position.

    Args:
      x: queries or keys, float [B, L, heads * size], with concatenated heads.
      size: width of a head, even.
      base: base of the wavelengths: pair i turns by base^(-2 i / size) per position.
    """
    heads = x.reshape(*x.shape[:2], -1, size)
    speed = base ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angle = (jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * speed)[:, None]
    first, second = jnp.split(heads, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.reshape(x.shape)


def _unbiased(width: int, name: str) -> nn.Dense:
    return nn.Dense(width, use_bias=False, name=name)


def _rms_norm(epsilon: float, name: str) -> nn.RMSNorm:
    return nn.RMSNorm(epsilon, use_fast_variance=False, name=name)


def _at_the_end(x: jax.Array, tokens: jax.Array) -> jax.Array:
    """Takes each text's last token: float [B, L, D] -> [B, D]."""
    return x[jnp.arange(len(x)), last_token(tokens)]


def _of_length_one(x: jax.Array, asked: bool) -> jax.Array:
    """Divides features [B, D] by their length if `asked`."""
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(1, keepdims=True), 1e-24)) if asked else x
