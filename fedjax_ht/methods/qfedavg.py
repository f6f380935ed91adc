"""q-FedAvg (Li et al., ICLR 2020): clients with a larger loss move the model further.

    client:  F_i, the loss of w on all its training samples; w_i <- w, then local epochs; uploads
             D_i = F_i^q L (w - w_i) and h_i = q F_i^(q-1) |L (w - w_i)|^2 + L F_i^q
    server:  w <- w - sum_i D_i / sum_i h_i over the uploads of one architecture
    predict: the client's copy of the model
    up:      W + 1: D_i and h_i
    down:    W: all parameters
    fits:    one architecture or a few, where the worst clients count
    paper:   https://arxiv.org/abs/1905.10497

Settled here:
* L is an option. In the paper it is 1 / eta of the clients' plain SGD, whose rate is the one tuned
  for q = 0.
* F_i is measured before training, by one more pass over the samples; it has 1e-10 added, as in the
  authors' code.
* F_i must be positive, as it is for all tasks of the library; the power of a negative loss is NaN.
* q = 0 is the uniform mean of FedAvg. The authors' code instead draws clients by their samples; use
  `select` for that.
* The paper has one architecture; here every architecture has its own w. Batch statistics stay with
  each client, as in `fedavg`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import NonNegative, Positive, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.architectures import averaging_method, joined
from fedjax_ht.methods.shared.averaging import client_weights
from fedjax_ht.methods.shared.supervised import own_loss, train_model


class Uplink(NamedTuple):
    """A client's step.

    Attributes:
      step: D_i, with the parameters' structure.
      curvature: h_i, float32 scalar.
    """

    step: PyTree
    curvature: jax.Array


@checked
def qfedavg(
    training: LocalTraining,
    *,
    q: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 0.1,
    lipschitz: Annotated[Positive, SearchRange(1.0, 100.0)] = 10.0,
) -> Method:
    """Makes q-FedAvg, described in the module's docstring.

    Args:
      training: the recipe of local training.
      q: the exponent; 0 weights clients equally, and larger values weight the worst clients more.
      lipschitz: L, in the paper 1 / eta of the clients' plain SGD.
    """

    def client_update(bucket, client, downlink, data, ctx):
        loss = own_loss(bucket, client, data) + 1e-10
        client, result = train_model(training, bucket, client, data, ctx)
        slope = jax.tree.map(lambda w, own: lipschitz * (w - own), downlink, client["params"])
        square = sum(jnp.sum(x**2) for x in jax.tree.leaves(slope))
        strength = loss**q
        uplink = Uplink(
            jax.tree.map(lambda x: strength * x, slope),
            q * loss ** (q - 1) * square + lipschitz * strength,
        )
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        for uploads, params in zip(joined(federation, received), server):
            total = weighted_sum(uploads.uplink, client_weights(uploads))
            # without an upload both sums are 0
            curvature = jnp.maximum(total.curvature, jnp.finfo(jnp.float32).tiny)
            new.append(jax.tree.map(lambda w, s, h=curvature: w - s / h, params, total.step))
        return new, {}

    return averaging_method("qfedavg", training, client_update, server_update=server_update)
