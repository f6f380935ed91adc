"""FedProto (Tan et al., AAAI 2022): clients share class prototypes.

    client:  L = CE + lambda * R(features, global prototypes); upload the mean feature of every own
      class
    server:  per class, the mean over this round's uploaders; the set is replaced each round
    predict: the class of the nearest global prototype

Settled here:
* R is the Euclidean distance between class means, with lambda 0.1 as the FedTGP and FedKTL papers
  run it; variant="released" is HtFLlib: the mean square between each sample and its prototype,
  lambda 10, prototypes averaged over the features seen while training, in training mode.
* The mean over uploaders is uniform, as in all released code. weighting="samples" is the paper's
  n_i^c weighting, normalised (Eq. 6 has a further 1/|N_c| that would shrink the prototypes), its
  counts sent as metadata.
* Inference looks at every class that has a prototype, as HtFLlib's does. The authors' own code
  looks at the client's own classes only: the second rule, "own_prototype"; the third is the
  client's own head.
"""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import NonNegative, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.round import gather_received, select
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import train_model


class Server(NamedTuple):
    """prototypes float32 [C, K] of the last round; available bool [C] marks the classes that have
    one."""

    prototypes: jax.Array
    available: jax.Array


@checked
def fedproto(
    training: LocalTraining,
    weight: Annotated[NonNegative | None, SearchRange(0.01, 10.0)] = None,
    variant: prototypes.Variant = "paper",
    weighting: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """FedProto as a `Method`, see above.

    Args:
      training: local training.
      weight: lambda; None takes the variant's own, 0.1 (paper) or 10 (released).
      variant: see the module's text.
      weighting: of the uploaders of a class.
    """
    strength = weight if weight is not None else {"paper": 0.1, "released": 10.0}[variant]
    by_samples, in_flight = weighting == "samples", variant == "released"

    def init_server(federation, key):
        c, k = federation.num_classes, federation.feature_dim
        return Server(jnp.zeros((c, k)), jnp.zeros(c, bool))

    def published(server):
        return Masked(server.prototypes, server.available)

    def client_update(bucket, client, downlink, data, ctx):
        pull = prototypes.regulariser(downlink, strength, variant)
        client, result = train_model(
            training, bucket, client, data, ctx, pull, gather_features=in_flight
        )
        sums = result.class_sums if in_flight else prototypes.class_sums(bucket, client, data)
        return client, prototypes.prototype_uplink(sums, by_samples), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        values, present = prototypes.uploaded(joined)
        weights = joined.uplink.counts.value.values if by_samples else None
        new = Server(prototypes.mean_by_class(values, present, weights), present.any(0))
        new = select(present.any(), new, server)  # clients without samples alone say nothing
        return new, {"classes": new.available.sum()}

    return Method(
        name="fedproto",
        training=training,
        check=lambda federation: federation.feature_dim and None,
        init_server=init_server,
        init_client=prototypes.init_client,
        receive=prototypes.receive,
        broadcast=lambda federation, bucket, server, ctx: published(server),
        client_update=client_update,
        server_update=server_update,
        predict=prototypes.scores,
        rules=prototypes.RULES,
        view=View(prototypes=published),
        wire=Wire(server_reads="sums"),
    )
