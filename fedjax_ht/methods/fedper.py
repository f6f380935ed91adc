"""FedPer (Arivazhagan et al., 2019): clients average their extractors, heads stay personal.

    client:  base_i <- base, then local epochs of cross-entropy on extractor and head
    server:  base <- sum_i n_i base_i / sum_i n_i over the uploads of one architecture
    predict: the averaged extractor and the client's head
    up:      W - H: the extractor
    down:    W - H: the extractor
    paper:   https://arxiv.org/abs/1912.00818

Settled here:
* The paper has one architecture. Here clients are averaged whose extractors have parameters of
  equal names and shapes, whatever head follows them: other architectures have other means.
* The personal layers are the head, as `SplitModel` calls it; the paper also keeps some of the last
  blocks.
* Batch statistics stay with each client, as in `fedavg`.
"""

from typing import NamedTuple

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.shared.architectures import (
    extractor,
    groups_of,
    init_parts,
    joined,
    part_for,
)
from fedjax_ht.methods.shared.averaging import (
    Weighting,
    client_weights,
    sent_samples,
    weighted_mean,
)
from fedjax_ht.methods.shared.supervised import train_model


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      base: the parameters of its extractor.
      num_samples: Metadata(int32), the client's number of training samples; () where the mean does
        not weigh by it.
    """

    base: PyTree
    num_samples: Metadata | tuple


def extractor_groups(federation: Federation) -> list[list[Bucket]]:
    """Groups the buckets whose extractors have equal parameters, by their lowest client id."""
    return groups_of(federation, extractor)


@checked
def fedper(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedPer, whose algorithm the module's docstring gives.

    Args:
      training: the recipe of local training.
      weighting: weights of the mean, the clients' numbers of training samples or equal.
    """

    def init_server(federation, key):  # an extractor for each group
        return init_parts(federation, key, extractor)

    def broadcast(federation, bucket, server, ctx):
        return part_for(federation, bucket, server, part=extractor)

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": client["params"] | {"base": downlink}}

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        uplink = Uplink(client["params"]["base"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        for uploads, base in zip(joined(federation, received, extractor), server):
            weights = client_weights(uploads, uploads.uplink.num_samples)
            mean = weighted_mean(uploads.uplink.base, weights)
            # A group without an upload keeps its extractor.
            new.append(select(weights.any(), mean, base))
        return new, {}

    return Method(
        name="fedper",
        training=training,
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(server_reads="sums"),
    )
