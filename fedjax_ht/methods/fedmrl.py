"""FedMRL (Yi et al., NeurIPS 2024): a shared and a private model learn nested features.

    client:  (g, h) <- the server's; on each batch, with f_i and h_i the own extractor and head,
             m = P_i [g(x), f_i(x)], as wide as f_i(x), and d the width of g(x),
             L = CE(h(first d entries of m), y) + CE(h_i(m), y)
             g, h, f_i, h_i and P_i descend on L together; uploads (g, h)
    server:  (g, h) <- sum_i n_i (g_i, h_i) / sum_i n_i, of the uploads
    predict: h_i(m), with the newest g and h
    up:      A: the auxiliary model
    down:    A: the auxiliary model

Settled here:
* Both losses weigh 1 and P_i has a bias, as in all code; P_i stays with the client and starts as
  torch's linear layers do.
* The mean is by training samples; the authors' code counts validation and test samples, too.
  weighting="uniform" is HtFLlib.
* (g, h) is any model whose features are no wider than the clients', by default the smallest of the
  group (`make_federation`), which is as wide. Its batch statistics stay with the client.
* The authors clip the gradients of the own model, of the shared one and of P_i at norm 50 each; set
  it in the optimizer, which runs for each of the three by itself.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bounds import checked
from fedjax_ht.core.bucket import Bucket, features, init_variables, logits, own_features
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Context, Method, View, Wire
from fedjax_ht.core.trees import Array, PyTree, select
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared.averaging import (
    ModelUplink,
    Weighting,
    client_weights,
    sent_samples,
    weighted_mean,
)
from fedjax_ht.methods.shared.mutual import init_pair, separately, take_shared
from fedjax_ht.models.layers import Linear


def init_client(bucket: Bucket, ctx: Context) -> PyTree:
    """Makes a client as `mutual.init_pair` does, with P_i as "projection"."""
    beside = bucket.shared
    assert beside is not None  # as in every bucket of clients
    both = jnp.zeros((1, beside.feature_dim + bucket.feature_dim))
    key = jax.random.fold_in(ctx.key, 2)
    projection = Linear(bucket.feature_dim).init(key, both)["params"]
    return init_pair(bucket, ctx) | {"projection": projection}


def fuse(bucket: Bucket, projection: PyTree, shared: Array, private: Array) -> Array:
    """Projects the features of both models: float [B, d] and [B, K] -> m, float [B, K]."""
    both = jnp.concatenate([shared, private], axis=1)
    return Linear(bucket.feature_dim).apply({"params": projection}, both)


def nested_logits(
    bucket: Bucket, params: PyTree, shared_params: PyTree, fused: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes the logits of both heads.

    Args:
      bucket: the client's.
      params, shared_params: of the own model and of the shared one.
      fused: m, float [B, K].

    Returns:
      h_i(m) and h(first d entries of m), float [B, num_classes] each.
    """
    beside = bucket.shared
    assert beside is not None  # as in every bucket of clients
    coarse = fused[:, : beside.feature_dim]
    return logits(bucket, params, fused), logits(beside, shared_params, coarse)


def fused_features(bucket: Bucket, client: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes a client's m in evaluation mode, float [B, K]; as `core.bucket.own_features`."""
    beside = bucket.shared
    assert beside is not None  # as in every bucket of clients
    shared = own_features(beside, client["shared"], x, mask)
    return fuse(bucket, client["projection"], shared, own_features(bucket, client, x, mask))


def require_narrow_shared_model(federation: Federation) -> None:
    """Raises a ValueError where the shared model's features are wider than a client's."""
    width = federation.shared.feature_dim
    for bucket in federation.buckets:
        if bucket.feature_dim < width:
            raise ValueError(
                f"the shared model has {width} features, more than the {bucket.feature_dim} of "
                f"model {bucket.name!r}; fedmrl needs one with at most as many (model.shared)"
            )


@checked
def fedmrl(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedMRL, whose algorithm the module's docstring gives.

    Args:
      training: local training, of all three parts.
      weighting: weights of the mean, the clients' numbers of training samples or equal.

    Returns:
      The method; its `check` refuses a shared model with wider features than a client's.
    """
    for_each = dataclasses.replace(training, optimizer=separately(training.optimizer))

    def init_server(federation, key):
        return init_variables(federation.shared, key)["params"]

    def receive(bucket, client, downlink, data, ctx):
        return take_shared(client, params=downlink)

    def client_update(bucket, client, downlink, data, ctx):
        beside = bucket.shared

        def loss(params, stats, batch: Batch, key) -> Loss:
            def rows(part, name, key):
                return features(
                    part, params[name], stats[name], batch.x, batch.mask, train=True, key=key
                )

            private, private_stats = rows(bucket, "own", key)
            shared, shared_stats = rows(beside, "shared", jax.random.fold_in(key, 1))
            fused = fuse(bucket, params["projection"], shared, private)
            value = jnp.float32(0)
            for outputs in nested_logits(bucket, params["own"], params["shared"], fused):
                value += cross_entropy(outputs, batch.y, batch.mask)
            return Loss(value, {"own": private_stats, "shared": shared_stats})

        copy = client["shared"]
        params = {
            "own": client["params"],
            "shared": copy["params"],
            "projection": client["projection"],
        }
        stats = {"own": client["stats"], "shared": copy["stats"]}
        result = train(for_each, loss, params, stats, data, ctx.key, bucket.num_classes)
        params, stats = result.params, result.stats
        client = {
            "params": params["own"],
            "stats": stats["own"],
            "shared": {"params": params["shared"], "stats": stats["shared"]},
            "projection": params["projection"],
        }
        uplink = ModelUplink(params["shared"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        weights = client_weights(joined, joined.uplink.num_samples)
        return select(weights.any(), weighted_mean(joined.uplink.params, weights), server), {}

    def predict(bucket, client, downlink, x, mask):
        fused = fused_features(bucket, client, x, mask)
        private, shared = nested_logits(bucket, client["params"], client["shared"]["params"], fused)
        return {"head": private, "shared": shared}

    return Method(
        name="fedmrl",
        training=training,
        check=require_narrow_shared_model,
        init_server=init_server,
        init_client=init_client,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        rules=("head", "shared"),
        view=View(features=fused_features),
        wire=Wire(server_reads="sums"),
    )
