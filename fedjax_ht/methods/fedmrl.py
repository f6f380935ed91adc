"""FedMRL (Yi et al., NeurIPS 2024): a shared and a private model learn nested features.

    client:  (g, h) <- the server's; on each batch, with f_i and h_i the own extractor and head,
             m = P_i [g(x), f_i(x)], as wide as f_i(x), and d the width of g(x),
             L = CE(h(first d entries of m), y) + CE(h_i(m), y)
             g, h, f_i, h_i and P_i descend on L together; uploads (g, h)
    server:  (g, h) <- sum_i n_i (g_i, h_i) / sum_i n_i, of the uploads
    predict: h_i(m), with g and h as received
    up:      A - (K - d) C: the auxiliary model, its head on d features
    down:    A - (K - d) C: the auxiliary model, its head on d features
    paper:   https://arxiv.org/abs/2406.00488

Settled here:
* Both losses have weight 1 and P_i has a bias, as in all code. P_i stays with the client and is
  initialised like torch's linear layers.
* The mean is by training samples, or equal by weighting="uniform". The authors' code has no mean:
  it stores the live weights of one network, in which the next client trains, so that all uploads of
  a round are its last client's (run: 1, 2 and 5 are stored as 5, 5 and 5). The momentum of (g, h)
  and of P_i also passes from client to client.
* HtFLlib uses equal weights, and never stores a trained P_i: every round and every score uses the
  initial one (run: after three rounds P_i has moved by 0). With the line that stores it, our
  models, P_i and server are within 3e-8 of theirs after three rounds (4 clients, 2 architectures, d
  4 of K 16).
* (g, h) is any model whose features are no wider than the clients', by default the smallest of the
  group (`make_federation`), which is as wide. d is `dim`, by default a quarter of K, HtFLlib's 128
  of 512; features of g are averaged to it, as there. The authors' heterogeneous script has 500 of
  500, where h sees all of m and nothing nests, the homogeneous one 100 of 500, with h cut out of
  h_i. The batch statistics of (g, h) stay with the client.
* The authors clip the gradients of the own model, of the shared one and of P_i at norm 50 each; set
  it in the optimizer, which runs separately for each of the three.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, checked
from fedjax_ht.core.bucket import Bucket, init_variables, logits
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, View, Wire
from fedjax_ht.core.trees import Array, PyTree
from fedjax_ht.methods.shared import small_part
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, average_uploads, sent_samples
from fedjax_ht.methods.shared.mutual import init_pair, receive_shared
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel


def shared_width(shared: Bucket, width: int, dim: int | None) -> int:
    """Returns d, the width of the shared model's features.

    Args:
      shared: the auxiliary model as the federation has it.
      width: width K of a client's features.
      dim: requested width d; None takes a quarter of K if the model has K features, else the
        model's own width. So it does for features of pixels, which an average would mix.
    """
    if dim is not None:
        return dim
    if shared.feature_dim == width and _narrows(shared):
        return max(1, width // 4)
    return shared.feature_dim


def _narrows(shared: Bucket) -> bool:
    return isinstance(shared.module, SplitModel) and shared.task.outputs is None


def narrowed(shared: Bucket, dim: int) -> Bucket:
    """Returns the shared model with features averaged to `dim`, and its head on them."""
    if dim == shared.feature_dim:
        return shared
    module = shared.module.clone(feature_dim=dim)
    return dataclasses.replace(shared, module=module, feature_dim=dim)


def nested(bucket: Bucket, dim: int | None) -> Bucket:
    """Returns a client's bucket, whose shared model has features of `shared_width`."""
    width = shared_width(bucket.auxiliary, bucket.feature_dim, dim)
    return dataclasses.replace(bucket, shared=narrowed(bucket.auxiliary, width))


def init_client(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises a client like `mutual.init_pair`, with P_i as "projection"."""
    both = jnp.zeros((1, bucket.auxiliary.feature_dim + bucket.feature_dim))
    key = jax.random.fold_in(ctx.key, 2)
    projection = Linear(bucket.feature_dim).init(key, both)["params"]
    return init_pair(bucket, ctx) | {"projection": projection}


def mix(bucket: Bucket, params: PyTree, rows: small_part.Rows, x: PyTree) -> Array:
    """Projects both models' features: float [B, d] and [B, K] -> m, float [B, K]; a `Mixer.mix`."""
    both = jnp.concatenate([rows.shared, rows.private], axis=1)
    mixed: PyTree = Linear(bucket.feature_dim).apply({"params": params["projection"]}, both)
    return mixed


MIXER = small_part.Mixer("projection", mix)


def nested_logits(
    bucket: Bucket, params: PyTree, shared_params: PyTree, fused: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes the logits of both heads.

    Args:
      bucket: the bucket of the client.
      params, shared_params: parameters of the client's own model and of the shared one.
      fused: the fused features m, float [B, K].

    Returns:
      h_i(m) and h(first d entries of m), float [B, num_classes] each.
    """
    coarse = fused[:, : bucket.auxiliary.feature_dim]
    return logits(bucket, params, fused), logits(bucket.auxiliary, shared_params, coarse)


def check_widths(federation: Federation, dim: int | None) -> None:
    """Raises a ValueError unless the shared model can have `shared_width` features.

    These must not be wider than a client's, and equally wide for all clients.
    """
    shared, widths = federation.shared, {}
    for bucket in federation.buckets:
        width = widths[bucket.name] = shared_width(shared, bucket.feature_dim, dim)
        if bucket.feature_dim < width:
            raise ValueError(
                f"the shared model has {width} features, more than the {bucket.feature_dim} of "
                f"model {bucket.name!r}; fedmrl needs one with at most as many (model.shared, dim)"
            )
    if len(set(widths.values())) > 1:
        raise ValueError(
            f"the shared model has {shared.feature_dim} features, as many as some models and fewer "
            f"than others, so dim would be {widths}; set dim"
        )
    if dim is not None and dim > shared.feature_dim:
        raise ValueError(f"dim is {dim}; the shared model has only {shared.feature_dim} features")
    if dim not in (None, shared.feature_dim) and not _narrows(shared):
        raise ValueError(
            f"dim is {dim}; a shared model that is not a SplitModel, or has features for each "
            f"pixel, keeps its {shared.feature_dim} features"
        )


@checked
def fedmrl(
    training: LocalTraining, weighting: Weighting = "samples", dim: Count | None = None
) -> Method:
    """Makes FedMRL, described in the module's docstring.

    Args:
      training: the recipe of local training, of all three parts.
      weighting: weights of the mean: numbers of training samples, or equal weights.
      dim: width d of the shared model's features; wider ones are averaged to it. At a client's own
        width nothing nests. None takes a quarter of the client's where the model is as wide, else
        the model's own width.

    Returns:
      The method; its `check` rejects a shared model with wider features than a client's.
    """
    parts: tuple[str, ...] = ("own", "shared", MIXER.name)
    optimizers = dict.fromkeys(parts, training.optimizer)

    def init_server(federation, key):
        bucket = nested(federation.buckets[0], dim)
        return init_variables(bucket.auxiliary, key)["params"]

    def first_client(bucket, ctx):
        return init_client(nested(bucket, dim), ctx)

    def client_update(bucket, client, downlink, data, ctx):
        bucket = nested(bucket, dim)

        def loss(params, fused, batch):
            both = nested_logits(bucket, params["own"], params["shared"], fused)
            first, second = (bucket.task.loss(outputs, batch.y, batch.mask) for outputs in both)
            return first + second

        client, result = small_part.train_mixed(
            training, MIXER, bucket, client, data=data, ctx=ctx, loss=loss, optimizers=optimizers
        )
        uplink = ModelUplink(client["shared"]["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def compared(bucket, client, x, mask):
        return small_part.mixed_features(MIXER, nested(bucket, dim), client, x, mask)

    def predict(bucket, client, downlink, x, mask):
        fused, bucket = compared(bucket, client, x, mask), nested(bucket, dim)
        private, shared = nested_logits(bucket, client["params"], client["shared"]["params"], fused)
        return {"head": private, "shared": shared}

    return Method(
        name="fedmrl",
        training=training,
        needs=Needs(classes=False),
        check=functools.partial(check_widths, dim=dim),
        init_server=init_server,
        init_client=first_client,
        receive=receive_shared,
        client_update=client_update,
        server_update=average_uploads,
        predict=predict,
        rules=("head", "shared"),
        view=View(features=compared),
        wire=Wire(server_reads="sums"),
    )
