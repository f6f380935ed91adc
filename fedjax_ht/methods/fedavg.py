"""FedAvg (McMahan et al., AISTATS 2017): clients of one architecture average their parameters.

    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads that arrived
    client:  w_i <- w, then local epochs of cross-entropy

Batch statistics are never averaged: each client keeps its own (as PFLlib does). The server's model is scored in a
federation of slices (`make_sliced_federation`), which keep none.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.federation import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, PyTree
from fedjax_ht.core.round import gather_received, select
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.supervised import head_scores, init_model, train_model


class Uplink(NamedTuple):
    """A client's parameters and, where they are weighted by it, its number of samples."""

    params: PyTree
    num_samples: Metadata | tuple


def weighted_mean(stacked: PyTree, weights: jax.Array) -> PyTree:
    """Mean over the leading axis with weights [P], normalised; rows of weight zero are never read."""
    share = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(jnp.float32).tiny)

    def mean(x):
        w = share.reshape((-1,) + (1,) * (x.ndim - 1))
        return jnp.sum(jnp.where(w > 0, x, 0) * w, axis=0).astype(x.dtype)

    return jax.tree.map(mean, stacked)


@checked
def fedavg(training: LocalTraining, weighting: Literal["samples", "uniform"] = "samples") -> Method:
    """FedAvg as a `Method`, see above.

    Args:
      training: local training.
      weighting: of the average, by the clients' numbers of training samples or equal.
    """
    by_samples = weighting == "samples"

    def check(federation):
        if len(federation.buckets) > 1:
            names = ", ".join(b.name for b in federation.buckets)
            raise ValueError(f"fedavg averages whole models and needs one architecture for all clients, got {names}")

    def receive(bucket, client, downlink, data, ctx):
        return {"params": downlink, "stats": client["stats"]}

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        uplink = Uplink(client["params"], Metadata(ctx.info.num_samples) if by_samples else ())
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        uplink, _, arrived = gather_received(received)
        weights = uplink.num_samples.value * arrived if by_samples else arrived
        new = weighted_mean(uplink.params, weights.astype(jnp.float32))
        return select(weights.any(), new, server), {}  # clients without samples alone say nothing

    return Method(
        name="fedavg",
        training=training,
        check=check,
        init_server=lambda federation, key: init_variables(federation.buckets[0], key)["params"],
        init_client=init_model,
        broadcast=lambda federation, bucket, server, ctx: server,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=lambda bucket, client, downlink, x, mask: {"head": head_scores(bucket, client, x, mask)},
        global_params=lambda server: server,
        server_reads="sums",
    )
