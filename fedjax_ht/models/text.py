"""HtFLlib's text models: fastText, logistic regression, LSTM, GRU, BiLSTM and a transformer.

All take token ids int32 [B, L], with 0 for padding, and learn embeddings that start at random. They
differ from HtFLlib's:

1. The padding's embedding is zero and is not learned. Means are over the tokens that a text has;
   HtFLlib's are over all L positions, so that a short text's features are small.
2. A text ends with its last token that is not 0, and the recurrent models take their state there.
   HtFLlib's LSTM takes the last position of the longest text in the batch, which is zero for all
   shorter ones; its GRU takes the state at the end of each text, as here.
3. BiLSTM takes the state of each direction after the whole text: the reverse one at the first
   token. HtFLlib takes both at the last token, where the reverse one has read only that token and
   the padding after it.
4. Features are the head's input. In HtFLlib's released code, except for BiLSTM and transformers,
   they are the log-softmax of the features, because the models' own last line remains when their
   head is cut off.
5. Dropout needs a key, which methods give in training. It is HtFLlib's: 0.2 between the two layers
   of LSTM and GRU and before their heads, and 0.5 everywhere in the transformer.
6. The transformer masks padding: nothing attends to it. HtFLlib masks nothing, so that a text's
   features depend on the amount of padding after it.
7. Every layer of the transformer draws weights of its own. torch's `TransformerEncoder` copies one
   layer, so that all start equal.

As in HtFLlib, the hidden layer of the transformer's perceptrons is as wide as the tokens. The class
token is prepended after positions are added, so that it has none.
"""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.ops import RecurrentWeights, gru, longest, lstm

DROPOUT = 0.2
Cell = Literal["lstm", "gru"]
CELLS: dict[Cell, tuple[Callable, int]] = {"lstm": (lstm, 4), "gru": (gru, 3)}
"""Name -> the layer, and its number of gates."""


class Embedding(nn.Module):
    """A learned vector for each token id, zeros for 0: int [...] -> float [..., width].

    Parameter "embedding" [vocabulary, width], normal with variance 1 as torch's, or uniform within
    +-`bound`.
    """

    vocabulary: int
    width: int
    bound: float | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        def init(key, shape):
            if self.bound is None:
                table = jax.random.normal(key, shape)
            else:
                table = jax.random.uniform(key, shape, minval=-self.bound, maxval=self.bound)
            return table.at[0].set(0)

        table = self.param("embedding", init, (self.vocabulary, self.width))
        # Masked, not only initialised with zeros: no gradient may reach the padding's row.
        return jnp.where((tokens != 0)[..., None], table[tokens], 0)


class MeanEmbedding(nn.Module):
    """The mean of a text's embeddings, 0 for an empty text: int32 [B, L] -> float [B, width]."""

    vocabulary: int
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        total = Embedding(self.vocabulary, self.width, name="embedding")(tokens).sum(1)
        return total / jnp.maximum((tokens != 0).sum(1), 1)[:, None]


class FastText(nn.Module):
    """The mean embedding through a linear layer, HtFLlib's fastText.

    After Joulin et al., EACL 2017. int32 [B, L] -> float [B, width].
    """

    vocabulary: int
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return Linear(self.width, name="fc1")(
            MeanEmbedding(self.vocabulary, self.width, name="mean")(tokens)
        )


class Recurrence(nn.Module):
    """One recurrent layer, initialised as torch's: uniform within +-1/sqrt(width).

    float [T, B, D] -> [T, B, width]; `steps` as for `ops.lstm`. Parameters are "kernel"
    [D, G width], "bias", "recurrent_kernel" and "recurrent_bias".
    """

    cell: Cell
    width: int

    @nn.compact
    def __call__(self, x: jax.Array, steps: jax.Array) -> jax.Array:
        layer, gates = CELLS[self.cell]
        out = gates * self.width

        def init(key, shape):
            return uniform_fan_in(key, shape, self.width)

        weights = RecurrentWeights(
            kernel=self.param("kernel", init, (x.shape[-1], out)),
            bias=self.param("bias", init, (out,)),
            recurrent=self.param("recurrent_kernel", init, (self.width, out)),
            recurrent_bias=self.param("recurrent_bias", init, (out,)),
        )
        return layer(weights, x, steps)


class Recurrent(nn.Module):
    """HtFLlib's LSTM and GRU: layers of one width, with the state at the last token as features.

    int32 [B, L] -> float [B, width]. An LSTM's state goes through a ReLU.
    """

    cell: Cell
    vocabulary: int
    width: int
    layers: int = 2
    dropout: float = DROPOUT

    @nn.compact
    def __call__(
        self, tokens: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        dropping = train and self.has_rng("dropout")
        dropped = nn.Dropout(self.dropout, deterministic=not dropping)
        last = last_token(tokens)
        steps = longest(last) + 1
        x = Embedding(self.vocabulary, self.width, name="embedding")(tokens.T)
        for layer in range(self.layers):
            if layer > 0:
                x = dropped(x)
            x = Recurrence(self.cell, self.width, name=f"{self.cell}_{layer}")(x, steps)
        state = at(x, last)
        if self.cell == "lstm":
            state = nn.relu(state)
        return dropped(state)


class BiLSTM(nn.Module):
    """The states of both directions after the whole text, through a linear layer.

    HtFLlib's BiLSTM: int32 [B, L] -> float [B, width].
    """

    vocabulary: int
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        last = last_token(tokens)
        steps = longest(last) + 1
        embedding = Embedding(self.vocabulary, self.width, name="embedding")
        directions = {"lstm_0": tokens, "lstm_0_reverse": backwards(tokens, last)}
        states = []
        for name, x in directions.items():
            h = Recurrence("lstm", self.width, name=name)(embedding(x.T), steps)
            states.append(at(h, last))
        return Linear(self.width, name="fc1")(jnp.concatenate(states, -1))


def backwards(tokens: jax.Array, last: jax.Array) -> jax.Array:
    """Reverses each text, and keeps its padding at the end.

    Args:
      tokens: int [B, L].
      last: int32 [B], see `last_token`.

    Returns:
      int [B, L], each text from its last token to its first.
    """
    place = last[:, None] - jnp.arange(tokens.shape[1])
    # Positions past the text would be negative: they read the first token and are masked.
    return jnp.where(place >= 0, jnp.take_along_axis(tokens, jnp.maximum(place, 0), 1), 0)


def last_token(tokens: jax.Array) -> jax.Array:
    """Returns the index of each text's last token that is not 0, int32 [B]; 0 for an empty text."""
    return jnp.where(tokens != 0, jnp.arange(tokens.shape[1], dtype=jnp.int32), 0).max(1)


def at(x: jax.Array, place: jax.Array) -> jax.Array:
    """Takes one step of each sample: x [T, B, K] and place int32 [B] -> [B, K]."""
    # One gather of pairs (place[b], b), rather than a mask over all T steps.
    return x[place, jnp.arange(x.shape[1])]


def text_model(name: str, num_classes: int, vocabulary: int, feature_dim: int = 512) -> SplitModel:
    """Builds one of this module's models with a linear head.

    Args:
      name: "fasttext", "text_logistic", "lstm", "gru" or "bilstm".
      num_classes: number of classes, the outputs of the linear head.
      vocabulary: number of token ids, 0 among them.
      feature_dim: K, the width of embeddings, layers and features.

    Raises:
      ValueError: there is no such model.
    """
    size, head = (vocabulary, feature_dim), Linear(num_classes)
    if name in CELLS:
        return SplitModel(Recurrent(name, *size), head, stateful=True)
    bases = {"fasttext": FastText, "text_logistic": MeanEmbedding, "bilstm": BiLSTM}
    if name not in bases:
        raise ValueError(f"unknown text model {name!r}; there are {', '.join([*bases, *CELLS])}")
    return SplitModel(bases[name](*size), head)


class MaskedAttention(nn.Module):
    """softmax(Q K^T / sqrt(D / heads)) V of each head over the seen tokens, then a linear layer.

    float [B, T, D] and seen bool [B, T] -> [B, T, D]. Parameters as in `vits.SelfAttention`,
    initialised as in torch.
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
    return nn.LayerNorm(1e-5, use_fast_variance=False, name=name)


def positions(length: int, width: int) -> np.ndarray:
    """Returns sinusoids, float64 [length, width].

    Column 2 i is sin(t / 10000^(2 i / width)), and column 2 i + 1 the cosine.
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
    dropout: float = 0.5

    @nn.compact
    def __call__(
        self, tokens: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, width] of tokens int32 [B, L]."""
        dropping = train and self.has_rng("dropout")
        x = Embedding(self.vocabulary, self.width, 0.1, name="embedding")(tokens)
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
