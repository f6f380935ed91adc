"""FedDyn (Acar et al., ICLR 2021): a linear term makes the clients' optima agree with the server's.

    client:  w_i <- w; descends on CE - <w_i, s_i> + (alpha / 2) |w_i - w|^2; then
             s_i <- s_i - alpha (w_i - w); uploads w_i
    server:  h <- h - (alpha / N) sum_i (w_i - w) over the uploads of one architecture, N being its
             clients; w <- mean_i w_i - h / alpha, uniform
    predict: the client's copy of the model
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ and take part often; a small alpha may
             diverge
    paper:   https://arxiv.org/abs/2111.04263

Settled here:
* The penalty is the squared norm, as in the paper. PFLlib uses the norm itself, whose gradient has
  the same length at any distance. FL-bench has only the linear term and leaves the quadratic one to
  weight decay.
* s_i and h start at 0 and are kept by absent clients. A client whose upload is lost keeps its new
  s_i.
* alpha is 0.1, the paper's largest; the paper also takes 0.01.
* The paper has one architecture; here every architecture has its own server model and h. Batch
  statistics stay with each client, as in `fedavg`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared import architectures
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.methods.shared.corrections import dynamic_pull, train_corrected
from fedjax_ht.methods.shared.supervised import train_model


class Server(NamedTuple):
    """The server's state of one architecture.

    Attributes:
      params: w, {"base", "head"}.
      drift: h, the same structure.
    """

    params: PyTree
    drift: PyTree


@checked
def feddyn(
    training: LocalTraining, alpha: Annotated[Positive, SearchRange(0.01, 1.0)] = 0.1
) -> Method:
    """Makes FedDyn, described in the module's docstring.

    Args:
      training: local training.
      alpha: strength of the dynamic regulariser.
    """

    def init_server(federation, key):
        models = architectures.init_parts(federation, key)
        return [Server(model, jax.tree.map(jnp.zeros_like, model)) for model in models]

    def init_client(bucket, ctx):
        client = init_variables(bucket, ctx.key)
        return client | {"slope": jax.tree.map(jnp.zeros_like, client["params"])}

    def broadcast(federation, bucket, server, ctx):
        return architectures.part_for(federation, bucket, server).params

    def client_update(bucket, client, downlink, data, ctx):
        slope = client["slope"]
        pulled = train_corrected(training, dynamic_pull(alpha, downlink, slope))
        trained, result = train_model(pulled, bucket, client, data, ctx)
        params = trained["params"]
        slope = jax.tree.map(lambda s, w, a: s - alpha * (w - a), slope, params, downlink)
        return trained | {"slope": slope}, params, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        sizes = architectures.sizes_of(federation)
        for uploads, old, size in zip(architectures.joined(federation, received), server, sizes):
            weights = client_weights(uploads)
            total = weighted_sum(uploads.uplink, weights / size)
            share = jnp.sum(weights) / size

            def drifted(h, t, w, share=share):
                return h - alpha * (t - share * w)

            drift = jax.tree.map(drifted, old.drift, total, old.params)
            mean = weighted_mean(uploads.uplink, weights)
            params = jax.tree.map(lambda m, h: m - h / alpha, mean, drift)
            new.append(select(weights.any(), Server(params, drift), old))
        return new, {}

    return architectures.averaging_method(
        "feddyn",
        training,
        client_update,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        server_update=server_update,
        view=View(invariant=architectures.apart_from_mean("drift", kept="slope")),
    )
