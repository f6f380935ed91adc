"""Heads on the wire: the first global head, and how a client takes it.

A head holds a model's parameters after the features, of the same form in all clients. Papers also
call it "header" or "classifier".
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, start_from
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree

Bias = Literal["first", "last"]
"""The position of a class's bias in its row of a linear head."""


def rows_of(head: PyTree, bias: Bias = "last") -> jax.Array:
    """Lays out a linear head by class.

    Args:
      head: {"kernel": [K, C], "bias": [C]}.
      bias: "first" if narrower heads are compared with wider ones: a narrow row then aligns with
        the start of a wide one.

    Returns:
      [C, K + 1], the weights and bias of each class.
    """
    weights, biases = head["kernel"].T, head["bias"][:, None]
    rows = [biases, weights] if bias == "first" else [weights, biases]
    return jnp.concatenate(rows, axis=1)


def head_of(rows: jax.Array, bias: Bias = "last") -> PyTree:
    """Builds the linear head of rows [..., C, K + 1]; the inverse of `rows_of`."""
    if bias == "first":
        biases, weights = rows[..., 0], rows[..., 1:]
    else:
        biases, weights = rows[..., -1], rows[..., :-1]
    return {"kernel": jnp.swapaxes(weights, -1, -2), "bias": biases}


def head_bucket(federation: Federation) -> Bucket:
    """Returns client 0's bucket, a choice that does not depend on the order of the buckets."""
    return federation.buckets[federation.assignment[0]]


def init_head(federation: Federation, key: jax.Array) -> PyTree:
    """Initialises the global head as client 0's model initialises its own."""
    bucket = head_bucket(federation)
    rows = jnp.zeros((1, bucket.feature_dim))
    head = bucket.module.init(key, rows, method="classify")["params"]["head"]
    return start_from(bucket.weights, {"params": {"head": head}})["params"]["head"]


def take_head(client: PyTree, head: PyTree) -> PyTree:
    """Replaces the head in a client's state; extractor and batch statistics are unchanged."""
    return client | {"params": client["params"] | {"head": head}}


def receive_head(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Replaces a client's head with the global head, its downlink; a `Method.receive`."""
    return take_head(client, downlink)
