"""Means over clients: how much each client weighs, and the mean itself."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.core.method import Context, PyTree, Received
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.wire import Metadata

Weighting = Literal["samples", "uniform"]


def sent_samples(ctx: Context, weighting: Weighting) -> Metadata | tuple:
    """Returns the client's number of training samples where the mean weighs by it, else ()."""
    return Metadata(ctx.info.num_samples) if weighting == "samples" else ()


def client_weights(received: Received, num_samples: Metadata | tuple = ()) -> jax.Array:
    """Computes the weights of a mean over clients, float32 [P], not normalised.

    Args:
      received: the uplinks; clients that did not arrive, or have no training samples, weigh
        nothing.
      num_samples: what the clients sent by `sent_samples`, stacked: weights of a mean by samples.
        With () the other clients weigh 1 each.
    """
    weights = (
        num_samples.value if isinstance(num_samples, Metadata) else received.info.num_samples > 0
    )
    return jnp.where(received.arrived, weights, 0).astype(jnp.float32)


def weighted_mean(stacked: PyTree, weights: jax.Array) -> PyTree:
    """Computes the mean over the leading axis with weights [P], normalised.

    Rows of weight zero are never read.
    """
    tiny = jnp.finfo(jnp.float32).tiny
    return weighted_sum(stacked, weights / jnp.maximum(jnp.sum(weights), tiny))
