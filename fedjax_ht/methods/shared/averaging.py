"""Means over clients: how much each client weighs, and the mean itself."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.names import kind_of_value
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import HostArray, PyTree, select
from fedjax_ht.core.wire import Metadata, over_rows

Weighting = Literal["samples", "uniform"]


class ModelUplink(NamedTuple):
    """An upload of a model, or of a part of it, for a mean.

    Attributes:
      params: the model's parameters {"base", "head"}, or those of the part.
      num_samples: Metadata(int32), the client's number of training samples; () for an unweighted
        mean.
    """

    params: PyTree
    num_samples: Metadata | tuple


def sent_samples(ctx: Context, weighting: Weighting) -> Metadata | tuple:
    """Returns a client's number of training samples as metadata, if the mean is weighted by it.

    Args:
      ctx: the context of `client_update`.
      weighting: the weights of the mean: "samples", or "uniform", which sends nothing, ().
    """
    if weighting != "samples":
        return ()
    assert ctx.info is not None  # the context is a client's
    return Metadata(ctx.info.num_samples)


def client_weights(
    received: Received, num_samples: Metadata | HostArray | tuple[()] = ()
) -> jax.Array:
    """Computes the weights of a mean over clients, float32 [P], not normalised.

    Args:
      received: the uplinks; clients that did not arrive, or have no training samples, get weight 0.
      num_samples: the clients' numbers of samples, [P], or the `Metadata` with them. With (), the
        other clients get weight 1.

    Raises:
      ValueError: `num_samples` is something else. One line.

    Example:
      >>> info = fl.ClientInfo(jnp.arange(3), jnp.array([6, 0, 2]), jnp.zeros(3, int))
      >>> received = fl.Received(uplink=(), info=info, arrived=jnp.array([True, True, False]))
      >>> fl.client_weights(received)
      Array([1., 0., 0.], dtype=float32)
      >>> fl.client_weights(received, fl.Metadata(info.num_samples))
      Array([6., 0., 0.], dtype=float32)
    """
    weights: Any = num_samples.value if isinstance(num_samples, Metadata) else num_samples
    if isinstance(weights, tuple) and not weights:
        weights = received.info.num_samples > 0
    elif getattr(weights, "shape", None) != received.arrived.shape:
        raise ValueError(
            f"num_samples of client_weights is {kind_of_value(num_samples)}; it must be an array "
            f"of a number for each of {len(received.arrived)} clients, or () for equal weights"
        )
    return jnp.where(received.arrived, jnp.asarray(weights), 0).astype(jnp.float32)


def weighted_mean(stacked: PyTree, weights: jax.Array) -> PyTree:
    """Computes a weighted mean over the leading axis of stacked arrays.

    Args:
      stacked: pytree of float [P, ...].
      weights: float [P], at least 0, normalised here. Rows with weight zero are never read.

    Returns:
      The pytree without the leading axis; zeros if all weights are zero.

    Raises:
      ValueError: a leaf has integers or flags, such as the mask of `Masked`. One line.

    Example:
      >>> models = {"w": jnp.array([[1.0, 2.0], [jnp.nan, jnp.nan], [3.0, 4.0]])}
      >>> fl.weighted_mean(models, jnp.array([3.0, 0.0, 1.0]))
      {'w': Array([1.5, 2.5], dtype=float32)}
    """
    for path, leaf in jax.tree.leaves_with_path(stacked):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"weighted_mean takes floats, but {jax.tree_util.keystr(path)} is {leaf.dtype}; "
                "convert it, or average rows that some clients lack by fl.mean_by_class"
            )
    tiny = jnp.finfo(jnp.float32).tiny
    return weighted_sum(stacked, weights / jnp.maximum(jnp.sum(weights), tiny))


def mean_or(old: PyTree, stacked: PyTree, weights: jax.Array) -> PyTree:
    """Computes the `weighted_mean` of stacked arrays; returns `old` if all weights are zero."""
    return select(weights.any(), weighted_mean(stacked, weights), old)


def mean_model(old: PyTree, received: Received) -> PyTree:
    """Averages uploads of type `ModelUplink`; returns `old` if no client with samples arrived."""
    uplink = received.uplink
    return mean_or(old, uplink.params, client_weights(received, uplink.num_samples))


def average_uploads(
    federation: Federation, server: PyTree, received: dict[str, Received], ctx: Context
) -> tuple[PyTree, Metrics]:
    """Sets the server to the `mean_model` of all clients' uploads; a `Method.server_update`."""
    return mean_model(server, gather_received(received)), {}


def set_rows(
    table: jax.Array, received: Received, rows: Any, counted: jax.Array | None = None
) -> jax.Array:
    """Writes clients' rows into a table with a row for each client of the federation.

    Args:
      table: [num_clients, ...].
      received: the clients' uplinks.
      rows: the new rows, [P, ...], or one value for all.
      counted: bool [P], the clients whose rows are written; None for all that arrived.
    """
    written = received.arrived if counted is None else counted
    # The scatter drops an id past the last client.
    places = jnp.where(written, received.info.id, len(table))
    return table.at[places].set(rows, mode="drop")


def keep_present(tree: PyTree, present: HostArray) -> PyTree:
    """Sets rows of leaves [P, ...] to zero where `present` bool [P] is False.

    Servers also run the models of absent clients, whose values may be NaN.
    """
    return jax.tree.map(lambda x: jnp.where(over_rows(present, x), x, 0), tree)
