"""BERT's encoder (Devlin et al., NAACL 2019) as an extractor of features of texts.

It takes token ids int32 [B, L] that begin with the class token, of which 0 is padding; a text is
one segment. There is no dropout, and no pooler: features are the class token's, or the mean of all
tokens', as the folders of sentence encoders say.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.lab.weights.hugging_face.layers import (
    ACTIVATIONS,
    attend,
    embedding,
    encoder_sizes,
    layer_norm,
    require_positions,
)
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.settings import Settings
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.stacking import scan_blocks

Pooling = Literal["cls", "mean"]


class BertLayer(nn.Module):
    """x = norm(x + attention(x)), then x = norm(x + perceptron(x)).

    float [B, L, D] and seen bool [B, L] -> [B, L, D].
    """

    heads: int
    hidden: int
    epsilon: float
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        width = x.shape[-1]
        q, k, v = (Linear(width, name=name)(x) for name in ("query", "key", "value"))
        mixed = attend(q, k, v, self.heads, seen=seen[:, None, None])
        x = x + Linear(width, name="attention_output")(mixed)
        x = layer_norm(self.epsilon, "attention_norm")(x)
        y = ACTIVATIONS[self.activation](Linear(self.hidden, name="intermediate")(x))
        return layer_norm(self.epsilon, "output_norm")(x + Linear(width, name="output")(y))


class Bert(nn.Module):
    """Embeddings of words and positions, post-norm layers, and the features of a text.

    Attributes:
      vocabulary, positions, segments: number of token ids, of positions, and of kinds of segments.
      width: width of the tokens and of the features; `heads` must divide it.
      layers, heads, hidden: number of layers, of the heads of each, and width of its perceptron.
      epsilon: number that is added to the variances of norms.
      activation: name of the perceptrons' activation, one of `ACTIVATIONS`.
      pooling: "cls" for the features of the class token, "mean" for the mean over the tokens.
    """

    vocabulary: int
    positions: int
    segments: int
    width: int
    layers: int
    heads: int
    hidden: int
    epsilon: float = 1e-12
    activation: str = "gelu"
    pooling: Pooling = "cls"

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        length = tokens.shape[1]
        require_positions(length, self.positions)
        seen = tokens != 0
        x = embedding(self.vocabulary, self.width, "word_embeddings")(tokens)
        x = x + embedding(self.segments, self.width, "token_type_embeddings")(jnp.zeros(1, int))
        places = jnp.arange(length)
        x = x + embedding(self.positions, self.width, "position_embeddings")(places)
        x = layer_norm(self.epsilon, "embeddings_norm")(x)
        layer = BertLayer(
            self.heads, self.hidden, self.epsilon, self.activation, name="layers_blocks"
        )
        x = scan_blocks(layer, x, seen, length=self.layers)
        if self.pooling == "cls":
            return x[:, 0]
        count = jnp.maximum(seen.sum(1), 1)[:, None]
        return jnp.where(seen[..., None], x, 0).sum(1) / count


def bert(settings: Settings) -> Bert:
    """Builds the encoder of a config.json."""
    settings.require("position_embedding_type", "absolute")
    return Bert(
        vocabulary=settings.count("vocab_size"),
        positions=settings.count("max_position_embeddings"),
        segments=settings.count("type_vocab_size"),
        **encoder_sizes(settings),
        pooling=settings.pooling(),
    )


NAMES = Names(
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
