"""FedAvg (McMahan et al., AISTATS 2017): clients of one architecture average their parameters.

    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads that arrived
    client:  w_i <- w, then local epochs of cross-entropy

Batch statistics are never averaged: each client keeps its own (as PFLlib does). The server's model
is scored in a federation of slices (`make_sliced_federation`), which keep none.
"""

from typing import NamedTuple

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.federation import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, PyTree, Wire
from fedjax_ht.core.round import select
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.shared.averaging import (
    Weighting,
    client_weights,
    sent_samples,
    weighted_mean,
)
from fedjax_ht.methods.shared.supervised import train_model


class Uplink(NamedTuple):
    """A client's parameters and, where they are weighted by it, its number of samples."""

    params: PyTree
    num_samples: Metadata | tuple


@checked
def fedavg(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """FedAvg as a `Method`, see above.

    Args:
      training: local training.
      weighting: of the average, by the clients' numbers of training samples, or equal over those
        that have any.
    """

    def check(federation):
        if len(federation.buckets) > 1:
            names = ", ".join(b.name for b in federation.buckets)
            raise ValueError(
                "fedavg averages whole models and needs one architecture for all clients, got "
                f"{names}"
            )

    def receive(bucket, client, downlink, data, ctx):
        return {"params": downlink, "stats": client["stats"]}

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        uplink = Uplink(client["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        (received,) = received.values()
        weights = client_weights(received, received.uplink.num_samples)
        new = weighted_mean(received.uplink.params, weights)
        return select(weights.any(), new, server), {}  # clients without samples alone say nothing

    return Method(
        name="fedavg",
        training=training,
        check=check,
        init_server=lambda federation, key: init_variables(federation.buckets[0], key)["params"],
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        global_params=lambda server: server,
        wire=Wire(server_reads="sums"),
    )
