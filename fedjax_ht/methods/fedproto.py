"""FedProto (Tan et al., AAAI 2022): clients share class prototypes.

    client:  L = CE + lambda * R(features, global prototypes); uploads the mean feature of every
             class that it has samples of
    server:  per class, the mean over this round's uploaders; the set is replaced each round
    predict: the class of the nearest global prototype
    up:      C_i K: class means of features
    down:    C' K: their means over the clients
    paper:   https://arxiv.org/abs/2105.00243

Settled here:
* R is the Euclidean distance between class means, with lambda 0.1 as the FedTGP and FedKTL papers
  run it; variant="released" is HtFLlib: the mean square between each sample and its prototype,
  lambda 10, prototypes averaged over the features of the training steps, in training mode.
* The mean over uploaders is uniform, as in all released code. weighting="samples" is the paper's
  n_i^c weighting, normalised (Eq. 6 has a further 1/|N_c| that would shrink the prototypes); the
  counts are sent as metadata.
* Inference compares with every class that has a prototype, as HtFLlib's does. The authors' code
  compares with the client's classes only: the second rule, "own_prototype"; the third is the
  client's head.
"""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.federation import require_one_feature_width
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.trees import select
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.methods.shared.variants import Variant, settled

FORMS = prototypes.FORMS  # values of options that default to None, by variant


class Server(NamedTuple):
    """The prototypes of the last round.

    Attributes:
      prototypes: float32 [C, K].
      available: bool [C], the classes that have a prototype.
    """

    prototypes: jax.Array
    available: jax.Array


@checked
def fedproto(
    training: LocalTraining,
    *,
    weight: Annotated[NonNegative | None, SearchRange(0.01, 10.0)] = None,
    variant: Variant = "paper",
    weighting: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """Makes FedProto, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weight: lambda, the regulariser's weight; None takes the variant's, 0.1 (paper) or 10
        (released).
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
      weighting: weights of a class's uploaders in its mean.

    Returns:
      The method; its `check` rejects models whose feature widths differ.

    Example:
      >>> method = fl.fedproto(fl.LocalTraining(optax.sgd(0.1)), weight=0.5)
      >>> method.rules  # the first one is reported
      ('prototype', 'own_prototype', 'head')
    """
    strength = settled(variant, {"weight": weight}, FORMS)["weight"]
    by_samples = weighting == "samples"
    while_training = variant == "released"  # prototypes average the features of training steps

    def init_server(federation, key):
        c, k = federation.num_classes, federation.feature_dim
        return Server(jnp.zeros((c, k)), jnp.zeros(c, bool))

    def published(server):
        return Masked(server.prototypes, server.available)

    def broadcast(federation, bucket, server, ctx):
        return published(server)

    def client_update(bucket, client, downlink, data, ctx):
        pull = prototypes.regulariser(downlink, strength, variant)
        client, result = train_model(
            training, bucket, client, data, ctx, regulariser=pull, gather_features=while_training
        )
        sums = result.class_sums
        if not while_training:
            sums = prototypes.class_sums(bucket, client, data)
        assert sums is not None  # features were gathered, then or now
        return client, prototypes.prototype_uplink(sums, by_samples), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        values, present = prototypes.uploaded(joined)  # [P, C, K], [P, C]
        weights = joined.uplink.counts.value.values if by_samples else None
        new = Server(prototypes.mean_by_class(values, present, weights), present.any(0))
        # A round in which only clients without samples arrive keeps the prototypes.
        new = select(present.any(), new, server)
        return new, {"classes": new.available.sum()}

    return Method(
        name="fedproto",
        training=training,
        check=require_one_feature_width,
        init_server=init_server,
        init_client=prototypes.init_client,
        receive=prototypes.receive,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        predict=prototypes.scores,
        rules=prototypes.RULES,
        view=View(prototypes=published),
        wire=Wire(server_reads="sums", counts="steps" if while_training else "samples"),
    )
