"""Parts that several families of transformers have: attention, activations, embeddings, norms."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.lab.weights.hugging_face.settings import Settings

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": nn.gelu,
    "gelu_pytorch_tanh": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
}
"""Name in config.json -> the function; the middle two are one, by tanh."""


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, heads: int, *, seen: jax.Array | None = None
) -> jax.Array:
    """Computes softmax(Q K^T / sqrt(D / heads)) V of each head.

    Args:
      q: queries, float [B, T, D], whose heads are listed one after another.
      k, v: keys and values, float [B, S, E]; with E < D each of their heads serves several of q's
        that follow one another (grouped queries).
      heads: number of q's heads.
      seen: pairs that may attend, bool and broadcast to [B, 1, T, S]; None for all.

    Returns:
      float [B, T, D].
    """
    size = q.shape[-1] // heads
    q, k, v = (x.reshape(*x.shape[:2], -1, size) for x in (q, k, v))
    repeats = heads // k.shape[2]
    k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5
    if seen is not None:
        # Finite: in a row of padding nothing is seen, and -inf alone would make NaN of it.
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
    return mixed.reshape(*mixed.shape[:2], -1)


def causal(length: int) -> jax.Array:
    """Returns the pairs of a decoder, bool [1, 1, length, length]: no token sees a later one."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def embedding(rows: int, width: int, name: str) -> nn.Embed:
    """Builds a table of `rows` learned vectors, normal with standard deviation 0.02."""
    return nn.Embed(rows, width, embedding_init=nn.initializers.normal(0.02), name=name)


def layer_norm(epsilon: float, name: str) -> nn.LayerNorm:
    """Builds a LayerNorm that takes its variance in two passes, as torch does."""
    return nn.LayerNorm(epsilon, use_fast_variance=False, name=name)


def encoder_sizes(settings: Settings) -> dict[str, Any]:
    """Reads the fields that BERT's config.json and ViT's share, by the names of the modules'."""
    heads = settings.count("num_attention_heads")
    return {
        "width": settings.count("hidden_size", divisor=heads),
        "layers": settings.layers("num_hidden_layers"),
        "heads": heads,
        "hidden": settings.count("intermediate_size"),
        "epsilon": settings.number("layer_norm_eps", 1e-12),
        "activation": settings.choice("hidden_act", "gelu", ACTIVATIONS),
    }


def require_positions(length: int, positions: int) -> None:
    """Refuses texts that are longer than the positions of a model.

    Raises:
      ValueError: they are.
    """
    if length > positions:
        raise ValueError(
            f"texts have {length} tokens, and the model has {positions} positions; set "
            f"dataset.text_length to at most {positions}"
        )
