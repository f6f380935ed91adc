"""MOON (Li et al., CVPR 2021): features are pulled to the server's and away from the last ones.

    client:  w_i <- w; on each batch, with z, z_g and z_p the features of w_i, of w as received and
             of the last own model w_i', and g = cos(z, z_g) / tau, p = cos(z, z_p) / tau, descends
             on CE + mu mean(-log(e^g / (e^g + e^p))); then w_i' <- w_i; uploads w_i
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: the client's copy of the model
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ and train long; a step costs two more
             forward passes
    paper:   https://arxiv.org/abs/2103.16257

Settled here:
* The features are those before the head. The authors add two layers after the extractor; PFLlib and
  FL-bench do not.
* w_i' is w before a client's first training, so the term has no gradient then. w and w_i' run in
  evaluation mode, with the client's statistics at the start of the round and at the end of its last
  one.
* mu is 1 and tau 0.5; the paper chooses mu among 0.1, 1, 5 and 10.
* The paper has one architecture; here every architecture has its own mean. Batch statistics stay
  with each client, as in `fedavg`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import NonNegative, Positive, SearchRange, checked
from fedjax_ht.core.bucket import init_variables, own_features
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import select
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.prototypes import unit
from fedjax_ht.methods.shared.supervised import train_model


def model_contrast(features: jax.Array, near: jax.Array, far: jax.Array, tau: float) -> jax.Array:
    """Computes MOON's contrast of each sample, float [B].

    Args:
      features, near, far: float [B, K], of the trained model, of the model that attracts it, and of
        the model that repels it.
      tau: temperature.
    """
    cosine_gap = jnp.sum(unit(features) * (unit(far) - unit(near)), -1)
    # -log of a softmax over two is a softplus of their difference, which does not overflow.
    return jax.nn.softplus(cosine_gap / tau)


@checked
def moon(
    training: LocalTraining,
    *,
    mu: Annotated[NonNegative, SearchRange(0.1, 10.0)] = 1.0,
    tau: Positive = 0.5,
    weighting: Weighting = "samples",
) -> Method:
    """Makes MOON, described in the module's docstring.

    Args:
      training: local training.
      mu: weight of the contrast.
      tau: temperature.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """

    def init_client(bucket, ctx):
        model = init_variables(bucket, ctx.key)
        return model | {"last": model}

    def receive(bucket, client, downlink, data, ctx):
        first = {"params": downlink, "stats": client["stats"]}
        last = select(ctx.info.last_round < 0, first, client["last"])
        return client | {"params": downlink, "last": last}

    def client_update(bucket, client, downlink, data, ctx):
        received = {"params": downlink, "stats": client["stats"]}

        def contrast(rows, batch):
            near = own_features(bucket, received, batch.x, batch.mask)
            far = own_features(bucket, client["last"], batch.x, batch.mask)
            return mu * masked_mean(model_contrast(rows, near, far, tau), batch.mask)

        trained, result = train_model(training, bucket, client, data, ctx, regulariser=contrast)
        last = {"params": trained["params"], "stats": trained["stats"]}
        uplink = ModelUplink(trained["params"], sent_samples(ctx, weighting))
        return trained | {"last": last}, uplink, {"loss": result.loss}

    return averaging_method(
        "moon", training, client_update, init_client=init_client, receive=receive
    )
