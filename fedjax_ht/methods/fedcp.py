"""FedCP (Zhang et al., KDD 2023): a policy sends parts of each feature to two heads.

    client:  on receipt v_i <- the sum over classes of the rows of its head h_i; f, G, h <- the
             server's. With u = f(x) and a = softmax(G(u v_i / |v_i|) + Gumbel noise) over pairs,
             out = h_i(u a_1) + h(u a_2); descends on CE(out, y) + lam MMD(u, f'(x)) by f, h_i and
             G, f' being f as received; uploads f, G and (h_i + h) / 2
    policy:  G = Linear K -> 2 K, LayerNorm, ReLU
    server:  means of f, h and G by samples over the uploads of one architecture
    predict: out without noise, with the newest f, h and G
    up:      W + 2 K^2 + 6 K: all parameters and the policy
    down:    W + 2 K^2 + 6 K: the same
    fits:    one architecture or a few, clients that differ much
    paper:   https://arxiv.org/abs/2307.01217

Settled here:
* The released code also draws noise where it predicts, so that two passes differ.
* All parts go to every client that is reached. The released code sends f to all and h, G to the
  round's clients alone, so that others predict by a new f and an old h.
* v_i is first drawn from [0, 1)^K, and h_i starts as the h that a client receives first. In general
  v_i is the slope of the summed logits at u = 0; for a head of one layer, the sum of its rows.
* MMD is the sum over kernels of bandwidths 10, 15, 20 and 50, diagonals included, as released; lam
  is 5, as for the authors' CNN.
* The paper has one architecture; here every architecture has its own f, h and G. Batch statistics
  stay with each client, as in `fedavg`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, logits, own_features
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.losses import mmd_loss
from fedjax_ht.methods.shared.architectures import averaging_method, groups_of, init_parts
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.methods.shared.supervised import batch_features, train_beside
from fedjax_ht.models.layers import init_normed
from fedjax_ht.ops import safe_norm

EPSILON = 1e-5  # of the layer norm, torch's


def init_policy(key: jax.Array, dim: int) -> PyTree:
    """Initialises G as torch initialises linear layers."""
    return init_normed(key, dim, 2 * dim)


def shares_of(
    policy: PyTree, rows: jax.Array, context: jax.Array, noise: jax.Array | float = 0.0
) -> jax.Array:
    """Computes a, float [B, 2, K]: the shares of each feature that go to either head.

    Args:
      policy: G.
      rows: float [B, K], u.
      context: float [K], v.
      noise: float [B, 2, K], added before the softmax over pairs.
    """
    direction = context / safe_norm(jnp.sum(context**2))
    hidden = (rows * direction) @ policy["kernel"] + policy["bias"]
    mean, variance = hidden.mean(-1, keepdims=True), hidden.var(-1, keepdims=True)
    normal = (hidden - mean) * lax.rsqrt(variance + EPSILON)
    scores = jax.nn.relu(normal * policy["scale"] + policy["shift"])
    return jax.nn.softmax(scores.reshape(len(rows), 2, -1) + noise, axis=1)


def context_of(bucket: Bucket, head: PyTree) -> jax.Array:
    """Computes the slope of a head's summed logits at 0, float [K]."""

    def total(row):
        return logits(bucket, {"head": head}, row[None]).sum()

    return jax.grad(total)(jnp.zeros(bucket.feature_dim))


def outputs(
    bucket: Bucket, own: PyTree, shared: PyTree, rows: jax.Array, shares: jax.Array
) -> jax.Array:
    """Computes h_i(u a_1) + h(u a_2), float [B, C]."""
    personal = logits(bucket, {"head": own}, rows * shares[:, 0])
    return personal + logits(bucket, {"head": shared}, rows * shares[:, 1])


@checked
def fedcp(
    training: LocalTraining,
    *,
    lam: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 5.0,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedCP, described in the module's docstring.

    Args:
      training: local training, of model and policy.
      lam: weight of the discrepancy between features and those of the extractor as received.
      weighting: weights of the means: numbers of training samples, or equal weights.
    """
    recipe = in_parts(training, dict.fromkeys(("model", "policy"), training.optimizer))

    def init_server(federation, key):
        parts = []
        groups = groups_of(federation)
        for i, params in enumerate(init_parts(federation, key)):
            policy_key = jax.random.fold_in(jax.random.fold_in(key, i), 1)
            parts.append(params | {"policy": init_policy(policy_key, groups[i][0].feature_dim)})
        return parts

    def init_client(bucket, ctx):
        policy_key, context_key = jax.random.split(jax.random.fold_in(ctx.key, 1))
        model = init_variables(bucket, ctx.key)
        return model | {
            "shared": model["params"]["head"],  # h as received, which trained scores need
            "policy": init_policy(policy_key, bucket.feature_dim),
            "context": jax.random.uniform(context_key, (bucket.feature_dim,)),
        }

    def receive(bucket, client, downlink, data, ctx):
        first, own = ctx.info.last_round < 0, client["params"]["head"]
        context = jnp.where(first, client["context"], context_of(bucket, own))
        params = {"base": downlink["base"], "head": select(first, downlink["head"], own)}
        taken = {"shared": downlink["head"], "policy": downlink["policy"], "context": context}
        return client | {"params": params} | taken

    def client_update(bucket, client, downlink, data, ctx):
        context, received = client["context"], {"base": downlink["base"]}

        def loss(params, stats, batch: Batch, key) -> Loss:
            model = params["model"]
            kept, _ = batch_features(bucket, received, stats, batch)
            rows, stats = batch_features(bucket, model, stats, batch, key)
            noise = jax.random.gumbel(jax.random.fold_in(key, 1), (len(rows), 2, rows.shape[1]))
            shares = shares_of(params["policy"], rows, context, noise)
            out = outputs(bucket, model["head"], downlink["head"], rows, shares)
            value = bucket.task.loss(out, batch.y, batch.mask)
            return Loss(value + lam * mmd_loss(rows, kept, batch.mask), stats)

        client, result = train_beside(recipe, loss, "policy", client, data, ctx.key)
        model = client["params"]
        head = jax.tree.map(lambda a, b: (a + b) / 2, model["head"], downlink["head"])
        sent = {"base": model["base"], "head": head, "policy": client["policy"]}
        return client, ModelUplink(sent, sent_samples(ctx, weighting)), {"loss": result.loss}

    def predict(bucket, client, downlink, x, mask):
        rows = own_features(bucket, client, x, mask)
        shares = shares_of(client["policy"], rows, client["context"])
        out = outputs(bucket, client["params"]["head"], client["shared"], rows, shares)
        return {"head": out}

    return averaging_method(
        "fedcp",
        training,
        client_update,
        init_server=init_server,
        init_client=init_client,
        receive=receive,
        predict=predict,
    )
