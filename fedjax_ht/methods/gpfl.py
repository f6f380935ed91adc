"""GPFL (Zhang et al., ICCV 2023): embeddings of all classes guide features, two views of each.

    client:  on receipt g_i <- mean_c Q_c and p_i <- sum_c s_ic Q_c by its own last embeddings Q and
             its class shares s_i; then f, Q, V <- the server's. On each batch descends on
             CE(h_i(V(f(x), p_i)), y) + CE(cos(V(f(x), g_i), Q), y) + lam |V(f(x), g_i) - Q'_y|,
             Q' being Q as received; uploads f, Q, V
    valve:   V(u, c) = relu(u (gamma(c) + 1) + beta(c)), gamma and beta Linear-ReLU-LayerNorm
    server:  means of f, Q and V by samples over the uploads of equal extractors
    predict: h_i(V(f(x), p_i)) with f and V as received
    up:      W - H + C K + 2 K^2 + 6 K: the extractor, the class embeddings and the valve
    down:    W - H + C K + 2 K^2 + 6 K: the same
    fits:    equal extractors, clients of few classes
    paper:   https://arxiv.org/abs/2308.10279

f is the extractor, h_i the client's head, Q float [C, K].

Settled here:
* |.| is the Frobenius norm over the batch, not squared, as in the released code, so that lam counts
  for more in small batches.
* In round 0 g_i and p_i are zero, as in the released code. A client that comes later takes both
  from the Q that it receives.
* Class shares count all training samples; the released code leaves out the last batch.
* Q and V decay by mu and are trained by the recipe's optimizer, apart from f and h_i. lam and mu
  are those of the authors' CNN; theirs for ResNet-18 are 1e-4 and 0.
* Heads and batch statistics stay with each client, as in `fedper`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import init_variables, logits, own_features
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method, Needs, View
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared.architectures import (
    EXTRACTOR,
    averaging_method,
    groups_of,
    init_parts,
)
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.methods.shared.prototypes import cosines_to
from fedjax_ht.methods.shared.supervised import batch_features, count_labels
from fedjax_ht.models.layers import init_normed
from fedjax_ht.ops import safe_norm

EPSILON = 1e-5  # of layer norms, torch's


def condition(params: PyTree, vector: jax.Array) -> jax.Array:
    """Runs gamma or beta on a vector float [K]: Linear, ReLU, LayerNorm."""
    hidden = jax.nn.relu(vector @ params["kernel"] + params["bias"])
    normal = (hidden - hidden.mean()) * jax.lax.rsqrt(hidden.var() + EPSILON)
    return normal * params["scale"] + params["shift"]


def valve(params: PyTree, rows: jax.Array, vector: jax.Array) -> jax.Array:
    """Computes V of rows float [B, K] under one condition float [K]."""
    factor = condition(params["gamma"], vector) + 1
    return jax.nn.relu(rows * factor + condition(params["beta"], vector))


def init_shared(key: jax.Array, num_classes: int, dim: int) -> PyTree:
    """Draws class embeddings from N(0, 1), and a valve."""
    *keys, embeddings_key = jax.random.split(key, 3)
    conditions = {name: init_normed(k, dim, dim) for name, k in zip(("gamma", "beta"), keys)}
    embeddings = jax.random.normal(embeddings_key, (num_classes, dim))
    return {"embeddings": embeddings, "valve": conditions}


@checked
def gpfl(
    training: LocalTraining,
    *,
    lam: Annotated[NonNegative, SearchRange(1e-4, 1.0)] = 0.01,
    mu: Annotated[NonNegative, SearchRange(1e-3, 1.0)] = 0.1,
    weighting: Weighting = "samples",
) -> Method:
    """Makes GPFL, described in the module's docstring.

    Args:
      training: local training, of all parts.
      lam: weight of the distance between features and the embeddings of their classes.
      mu: weight decay of embeddings and valve.
      weighting: weights of the means: numbers of training samples, or equal weights.
    """
    decayed = optax.chain(optax.add_decayed_weights(mu), training.optimizer)
    recipe = in_parts(training, {"model": training.optimizer, "shared": decayed})

    def init_server(federation, key):
        parts = []
        groups = groups_of(federation, EXTRACTOR)
        for i, base in enumerate(init_parts(federation, key, EXTRACTOR)):
            shared_key = jax.random.fold_in(jax.random.fold_in(key, i), 1)
            dim = groups[i][0].feature_dim
            parts.append({"base": base} | init_shared(shared_key, federation.num_classes, dim))
        return parts

    def init_client(bucket, ctx):
        shared = init_shared(jax.random.fold_in(ctx.key, 1), bucket.num_classes, bucket.feature_dim)
        nothing = jnp.zeros(bucket.feature_dim)
        return init_variables(bucket, ctx.key) | shared | {"global": nothing, "personal": nothing}

    def receive(bucket, client, downlink, data, ctx):
        first = ctx.info.last_round < 0
        embeddings = select(first, downlink["embeddings"], client["embeddings"])
        counts = count_labels(data, bucket.num_classes)
        shares = counts / jnp.maximum(counts.sum(), 1)
        begun = ctx.round > 0
        params = client["params"] | {"base": downlink["base"]}
        return client | {
            "params": params,
            "embeddings": downlink["embeddings"],
            "valve": downlink["valve"],
            "global": begun * embeddings.mean(0),
            "personal": begun * (shares @ embeddings),
        }

    def client_update(bucket, client, downlink, data, ctx):
        received = client["embeddings"]

        def loss(params, stats, batch: Batch, key) -> Loss:
            model, shared = params["model"], params["shared"]
            rows, stats = batch_features(bucket, model, stats, batch, key)
            general = valve(shared["valve"], rows, client["global"])
            own = valve(shared["valve"], rows, client["personal"])
            value = cross_entropy(logits(bucket, model, own), batch.y, batch.mask)
            cosine = cosines_to(general, shared["embeddings"])
            value += cross_entropy(cosine, batch.y, batch.mask)
            apart = jnp.where(batch.mask[:, None], general - received[batch.y], 0)
            return Loss(value + lam * safe_norm(jnp.sum(apart**2)), stats)

        shared = {name: client[name] for name in ("embeddings", "valve")}
        params = {"model": client["params"], "shared": shared}
        result = train(recipe, loss, params, client["stats"], data, key=ctx.key)
        model, shared = result.params["model"], result.params["shared"]
        uplink = ModelUplink({"base": model["base"]} | shared, sent_samples(ctx, weighting))
        return (
            client | {"params": model, "stats": result.stats} | shared,
            uplink,
            {"loss": result.loss},
        )

    def personal_features(bucket, client, x, mask):
        return valve(client["valve"], own_features(bucket, client, x, mask), client["personal"])

    def predict(bucket, client, downlink, x, mask):
        rows = personal_features(bucket, client, x, mask)
        return {"head": logits(bucket, client["params"], rows)}

    return averaging_method(
        "gpfl",
        training,
        client_update,
        EXTRACTOR,
        init_server=init_server,
        init_client=init_client,
        receive=receive,
        predict=predict,
        needs=Needs(),
        view=View(features=personal_features),
    )
