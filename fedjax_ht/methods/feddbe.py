"""FedDBE (Zhang et al., NeurIPS 2023): a bias of the features stays at each client.

    client:  w_i <- w; descends on CE(h(f(x) + z_i), y) + kappa / 2 |r - rbar|^2 / K by w_i and by
             its bias z_i; r <- (1 - m) r + m mean f(x) in each batch, from 0 in each round;
             uploads w_i and r. In the first round without z_i and rbar
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture; in the first round
             instead rbar <- sum_i n_i r_i / sum_i n_i, which stays
    predict: h(f(x) + z_i) with f and h as received
    up:      W + K: all parameters and the running mean of the features
    down:    W + K: all parameters and rbar
    fits:    one architecture or a few, clients that differ much
    paper:   https://arxiv.org/abs/2311.14975

f is the extractor, h the head, K the feature width.

Settled here:
* kappa is 50 and m is 1, as in the authors' script for their CNN. With m = 1, r is the mean of the
  last batch. r is not corrected for its start at 0, as in the released code.
* The released code asks all clients for r before the first round. Here the clients of the first
  round answer, and w and z_i stay. Every upload has both w_i and r, so that defences compare whole
  uploads; a real client would send r in the first round alone.
* z_i has the recipe's optimizer by itself. A client that was never reached has z_i = 0.
* The paper has one architecture; here every architecture has its own w and rbar. Batch statistics
  stay with each client, as in `fedavg`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import NonNegative, Part, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import init_variables, logits, own_features
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata
from fedjax_ht.methods.shared.architectures import (
    averaging_method,
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
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.methods.shared.supervised import batch_features


class Server(NamedTuple):
    """The server's state of one architecture.

    Attributes:
      params: w, {"base", "head"}.
      mean: float32 [K], rbar.
      ready: bool scalar, False until rbar is known.
    """

    params: PyTree
    mean: jax.Array
    ready: jax.Array


class Downlink(NamedTuple):
    """A client's download: w, and rbar as `Masked` float32 [K]."""

    params: PyTree
    mean: Masked


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      params: w_i; not used by the server in the first round.
      mean: float32 [K], r; used in the first round alone.
      num_samples: Metadata(int32), the client's number of training samples; () for unweighted
        means.
    """

    params: PyTree
    mean: jax.Array
    num_samples: Metadata | tuple


def batch_mean(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean feature float [K] of a batch, 0 if all samples are padding."""
    return jnp.where(mask[:, None], rows, 0).sum(0) / jnp.maximum(mask.sum(), 1)


@checked
def feddbe(
    training: LocalTraining,
    *,
    kappa: Annotated[NonNegative, SearchRange(0.1, 100.0)] = 50.0,
    momentum: Part = 1.0,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedDBE, described in the module's docstring.

    Args:
      training: local training, of the model and of the bias.
      kappa: weight of the distance between the running mean of features and that of all clients.
      momentum: m, the share of a batch in the running mean.
      weighting: weights of the means: numbers of training samples, or equal weights.
    """
    recipe = in_parts(training, dict.fromkeys(("model", "bias"), training.optimizer))

    def init_server(federation, key):
        servers = []
        for (bucket, *_), params in zip(groups_of(federation), init_parts(federation, key)):
            servers.append(Server(params, jnp.zeros(bucket.feature_dim), jnp.array(False)))
        return servers

    def init_client(bucket, ctx):
        return init_variables(bucket, ctx.key) | {"bias": jnp.zeros(bucket.feature_dim)}

    def broadcast(federation, bucket, server, ctx):
        group = part_for(federation, bucket, server)
        return Downlink(group.params, Masked(group.mean, group.ready, FIRST_ROWS))

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": downlink.params}

    def client_update(bucket, client, downlink, data, ctx):
        target, later = downlink.mean.values, downlink.mean.mask

        def loss(params, stats, batch: Batch, key) -> Loss:
            model, running = params["model"], stats["running"]
            rows, new = batch_features(bucket, model, stats["model"], batch, key)
            running = (1 - momentum) * running + momentum * batch_mean(rows, batch.mask)
            gap = jnp.mean((running - jnp.where(later, target, 0)) ** 2) / 2
            scores = logits(bucket, model, rows + later * params["bias"])
            value = bucket.task.loss(scores, batch.y, batch.mask) + later * kappa * gap
            return Loss(value, {"model": new, "running": running})

        params = {"model": client["params"], "bias": client["bias"]}
        stats = {"model": client["stats"], "running": jnp.zeros(bucket.feature_dim)}
        result = train(recipe, loss, params, stats, data, key=ctx.key)
        params, stats = result.params, result.stats
        uplink = Uplink(params["model"], stats["running"], sent_samples(ctx, weighting))
        client = client | {
            "params": params["model"],
            "stats": stats["model"],
            "bias": params["bias"],
        }
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        for uploads, old in zip(joined(federation, received), server):
            weights = client_weights(uploads, uploads.uplink.num_samples)
            params = weighted_mean(uploads.uplink.params, weights)
            mean = weighted_mean(uploads.uplink.mean, weights)
            first = Server(old.params, mean, jnp.array(True))
            stepped = select(old.ready, old._replace(params=params), first)
            new.append(select(weights.any(), stepped, old))
        return new, {}

    def biased_features(bucket, client, x, mask):
        return own_features(bucket, client, x, mask) + client["bias"]

    def predict(bucket, client, downlink, x, mask):
        rows = biased_features(bucket, client, x, mask)
        return {"head": logits(bucket, client["params"], rows)}

    return averaging_method(
        "feddbe",
        training,
        client_update,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        server_update=server_update,
        predict=predict,
        view=View(features=biased_features),
    )
