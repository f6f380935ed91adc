"""Decoders as extractors of features of texts: GPT-2 (Radford et al., 2019) and Llama (Touvron et
al., 2023).

They take token ids int32 [B, L], padded behind with 0, and no token sees a later one; features are
those of a text's last token that is not 0. There is no dropout. A head of as many classes as there
are token ids predicts the next token.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.lab.weights.hugging_face.layers import (
    ACTIVATIONS,
    attend,
    causal,
    embedding,
    layer_norm,
    require_positions,
)
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.settings import Settings
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.models.text import last_token


class Gpt2Layer(nn.Module):
    """Causal attention and a perceptron, each behind a LayerNorm and beside a shortcut.

    float [B, L, D] -> [B, L, D]. "c_attn" makes Q, K and V, in this order.
    """

    heads: int
    hidden: int
    epsilon: float
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = layer_norm(self.epsilon, "ln_1")(x)
        q, k, v = jnp.split(Linear(3 * width, name="c_attn")(y), 3, axis=-1)
        mixed = attend(q, k, v, self.heads, seen=causal(x.shape[1]))
        x = x + Linear(width, name="attn_c_proj")(mixed)
        y = Linear(self.hidden, name="c_fc")(layer_norm(self.epsilon, "ln_2")(x))
        return x + Linear(width, name="mlp_c_proj")(ACTIVATIONS[self.activation](y))


class Gpt2(nn.Module):
    """Embeddings of tokens and positions, pre-norm layers, a last LayerNorm.

    Attributes:
      vocabulary, positions: number of token ids and of positions.
      width: width of the tokens and of the features; `heads` must divide it.
      layers, heads, hidden: number of layers, of the heads of each, and width of its perceptron.
      epsilon: number that is added to the variances of norms.
      activation: name of the perceptrons' activation, one of `ACTIVATIONS`.
    """

    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    hidden: int
    epsilon: float = 1e-5
    activation: str = "gelu_new"

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        length = tokens.shape[1]
        require_positions(length, self.positions)
        x = embedding(self.vocabulary, self.width, "wte")(tokens)
        x = x + embedding(self.positions, self.width, "wpe")(jnp.arange(length))
        layer = Gpt2Layer(
            self.heads, self.hidden, self.epsilon, self.activation, name="layers_blocks"
        )
        x = layer_norm(self.epsilon, "ln_f")(scan_blocks(layer, x, length=self.layers))
        return _at_the_end(x, tokens)


def gpt2(settings: Settings) -> Gpt2:
    """Builds the extractor of a config.json of GPT-2."""
    settings.require("scale_attn_weights", True)
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    heads = settings.count("n_head")
    width = settings.count("n_embd", divisor=heads)
    hidden = 4 * width
    if settings.fields.get("n_inner") is not None:
        hidden = settings.count("n_inner")
    return Gpt2(
        vocabulary=settings.count("vocab_size"),
        positions=settings.count("n_positions"),
        width=width,
        layers=settings.layers("n_layer"),
        heads=heads,
        hidden=hidden,
        epsilon=settings.number("layer_norm_epsilon", 1e-5),
        activation=settings.choice("activation_function", "gelu_new", ACTIVATIONS),
    )


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
    """Causal attention with rotated positions and a gated perceptron, each behind an RMSNorm and
    beside a shortcut.

    float [B, L, D] -> [B, L, D]; no layer has a bias.
    """

    heads: int
    key_heads: int
    head_size: int
    hidden: int
    epsilon: float
    activation: str
    base: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = _rms_norm(self.epsilon, "input_layernorm")(x)
        q = _unbiased(self.heads * self.head_size, "q_proj")(y)
        k = _unbiased(self.key_heads * self.head_size, "k_proj")(y)
        v = _unbiased(self.key_heads * self.head_size, "v_proj")(y)
        q, k = (rotated(z, self.head_size, self.base) for z in (q, k))
        mixed = attend(q, k, v, self.heads, seen=causal(x.shape[1]))
        x = x + _unbiased(width, "o_proj")(mixed)
        y = _rms_norm(self.epsilon, "post_attention_layernorm")(x)
        gate = ACTIVATIONS[self.activation](_unbiased(self.hidden, "gate_proj")(y))
        return x + _unbiased(width, "down_proj")(gate * _unbiased(self.hidden, "up_proj")(y))


class Llama(nn.Module):
    """Embeddings of tokens, pre-norm layers, a last RMSNorm.

    Attributes:
      vocabulary, positions: number of token ids and of positions.
      width: width of the tokens and of the features.
      layers, hidden: number of layers, and width of the perceptron of each.
      heads, key_heads, head_size: number of heads of queries, of heads of keys and values, and the
        width of one.
      epsilon: number that is added to mean squares in norms.
      activation: name of the gates' activation, one of `ACTIVATIONS`.
      base: base of the rotations' wavelengths.
    """

    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    hidden: int
    epsilon: float = 1e-6
    activation: str = "silu"
    base: float = 10_000.0

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        require_positions(tokens.shape[1], self.positions)
        x = embedding(self.vocabulary, self.width, "embed_tokens")(tokens)
        layer = LlamaLayer(
            heads=self.heads,
            key_heads=self.key_heads,
            head_size=self.head_size,
            hidden=self.hidden,
            epsilon=self.epsilon,
            activation=self.activation,
            base=self.base,
            name="layers_blocks",
        )
        x = _rms_norm(self.epsilon, "norm")(scan_blocks(layer, x, length=self.layers))
        return _at_the_end(x, tokens)


def llama(settings: Settings) -> Llama:
    """Builds the extractor of a config.json of Llama."""
    settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    base = settings.rotary_base()
    heads = settings.count("num_attention_heads")
    width = settings.count("hidden_size")
    size = settings.fields.get("head_dim")
    if size is None:
        size = settings.count("hidden_size", divisor=heads) // heads
    else:
        size = settings.count("head_dim", divisor=2)
    key_heads = heads
    if settings.fields.get("num_key_value_heads") is not None:
        key_heads = settings.count("num_key_value_heads")
    settings.count("num_attention_heads", divisor=key_heads)
    return Llama(
        vocabulary=settings.count("vocab_size"),
        positions=settings.count("max_position_embeddings"),
        width=width,
        layers=settings.layers("num_hidden_layers"),
        heads=heads,
        key_heads=key_heads,
        head_size=size,
        hidden=settings.count("intermediate_size"),
        epsilon=settings.number("rms_norm_eps", 1e-6),
        activation=settings.choice("hidden_act", "silu", ACTIVATIONS),
        base=base,
    )


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
      x: queries or keys, float [B, L, heads * size], whose heads are listed one after another.
      size: width of a head, even.
      base: base of the wavelengths: pair i turns by base^(-2 i / size) a position.
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
