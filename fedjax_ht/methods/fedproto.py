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

from typing import Annotated, Literal

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.federation import require_one_feature_width
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.methods.shared.variants import Variant, settled

FORMS = prototypes.FORMS  # values of options that default to None, by variant


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
        return prototypes.no_prototypes(federation.num_classes, federation.feature_dim)

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

    return Method(
        name="fedproto",
        training=training,
        check=require_one_feature_width,
        init_server=init_server,
        init_client=prototypes.init_client,
        receive=prototypes.receive,
        client_update=client_update,
        server_update=prototypes.serve_means,
        predict=prototypes.scores,
        rules=prototypes.RULES,
        view=View(prototypes=lambda server: server),
        wire=Wire(server_reads="sums", counts="steps" if while_training else "samples"),
    )
