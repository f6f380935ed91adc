"""HetLoRA (Cho et al., EMNLP 2024): zero-padded adapters, weighted by the norm of their product.

    client:  A_i <- the first r_i rows of A, B_i <- the first r_i columns of B, head_i <- head, then
             local epochs of cross-entropy + lam sum_layers |A_i[k:]| |B_i[:, k:]|, k =
             floor(gamma r_i); if that sum has fallen meanwhile, r_i <- max(min_rank, k)
    server:  A <- sum_i p_i A_i, B <- sum_i p_i B_i, zero-padded, p_i = |B_i A_i| / sum_j |B_j A_j|
             over all layers; averages the heads by samples
    predict: the client's copy of adapters and head
    up:      L + H: adapters of the client's rank, and the head
    down:    L + H: adapters of the client's rank, and the head
    fits:    adapters of several ranks (`config.model.lora`), on one trained extractor or a few
    paper:   https://arxiv.org/abs/2401.06432

Norms are Frobenius norms. Settled here:
* With one alpha for all ranks, adapters are averaged times sqrt(alpha / r_i), and divided by it on
  the way down, so that different scales agree; with a scale of 2 for all, by
  `config.model.lora_alpha` 0, that changes nothing. Norms are of B_i A_i without a scale.
* The regulariser has a gradient, as in the paper; FlexLoRA's code, which has HetLoRA as a baseline,
  takes norms without one. At zero, where B starts, its gradient is zero.
* The server infers a client's rank from the rows of its uploads; if an upload is lost, or a defence
  drops some of its rows, the client's pruning is lost as well.
* lam and min_rank are options here. prune=False changes neither ranks nor loss; weighting="samples"
  is the zero padding that FLoRA's paper compares with.
* A client without samples, or with a product of zero, has weight 0. If all weights are 0, adapters
  do not change. Batch statistics stay with each client.
"""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import Count, NonNegative, Part, SearchRange, checked
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked, dense, is_masked
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import Model, Rows
from fedjax_ht.methods.shared.averaging import mean_or, set_rows
from fedjax_ht.methods.shared.supervised import train_model


class Server(NamedTuple):
    """The server's state.

    Attributes:
      models: each family's adapters, times the root of their scale, and head.
      ranks: int32 [num_clients], the rank of each client; () without pruning.
    """

    models: list[Model]
    ranks: Any


def sent_rows(rows: Rows, rank: jax.Array) -> Rows:
    """Masks adapters so that their first `rank` rows are sent."""

    def masked(x):
        return Masked(x, jnp.arange(len(x)) < rank, FIRST_ROWS)

    return jax.tree.map(masked, rows)


def rank_of(rows: Rows) -> jax.Array:
    """Counts the rows of adapters that are sent, int32 []."""
    first = jax.tree.leaves(rows, is_leaf=is_masked)[0]
    return jnp.sum(first.mask, axis=-1, dtype=jnp.int32)


def uncut(rows: Rows) -> jax.Array:
    """Returns False, bool [P], for uploads of which a defence has dropped single rows."""
    masks = [x.mask for x in jax.tree.leaves(rows, is_leaf=is_masked)]
    first = jnp.arange(masks[0].shape[1]) < rank_of(rows)[:, None]
    return masks[0].any(1) & jnp.all(jnp.stack(masks) == first, (0, 2))


def tail_norms(rows: Rows, first: jax.Array) -> jax.Array:
    """Computes sum_layers |A[first:]| |B[:, first:]|, whose gradient is zero at zero."""

    def norm(x):
        tail = jnp.arange(len(x)).reshape(-1, *(1,) * (x.ndim - 1)) >= first
        square = jnp.sum(jnp.square(jnp.where(tail, x, 0)), axis=(0, -1))
        # The inner `where` keeps the root's infinite slope at zero out of the gradient.
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    total = jnp.float32(0)
    for pair in adapters.pairs_of(rows):
        a, b = map(norm, pair.values())
        total += jnp.sum(a * b)
    return total


@checked
def hetlora(
    training: LocalTraining,
    lam: Annotated[NonNegative, SearchRange(0.0001, 0.1)] = 0.001,
    gamma: Part = 0.99,
    *,
    prune: bool = True,
    min_rank: Count = 1,
    weighting: Literal["norms", "samples"] = "norms",
) -> Method:
    """Makes HetLoRA, described in the module's docstring.

    Args:
      training: local training.
      lam: weight of the regulariser of the last rows, if clients prune.
      gamma: share of a rank that a pruning keeps.
      prune: True lets clients prune their ranks.
      min_rank: rank below which no client prunes.
      weighting: weights of the mean, norms of products or the clients' numbers of samples.
    """

    def init_server(federation, key):
        models = []
        families = adapters.families_of(federation)
        for family, model in zip(families, adapters.init_models(federation, key)):
            root = adapters.adapted(adapters.largest(family)).scale ** 0.5
            models.append(model._replace(rows=adapters.scaled(model.rows, root)))
        return Server(models, jnp.asarray(_first_ranks(federation)) if prune else ())

    def broadcast(federation, bucket, server, ctx):
        extractor = adapters.adapted(bucket)
        model = adapters.state_for(federation, bucket, server.models)
        rows = adapters.first_rows(model.rows, extractor.rank)
        rows = adapters.scaled(rows, extractor.scale**-0.5)
        if prune:
            rows = sent_rows(rows, server.ranks[ctx.info.id])
        return model._replace(rows=rows)

    def tail(params: PyTree, first: jax.Array) -> jax.Array:
        return tail_norms(adapters.to_rows(params["base"]), first)

    def train_and_prune(bucket, client, downlink, data, ctx):
        """Trains a client; returns its state, its rows masked to those sent, and a loss."""
        rank, before = rank_of(downlink.rows), client["params"]
        first = jnp.floor(gamma * rank).astype(jnp.int32)
        client, result = train_model(
            training,
            bucket,
            client,
            data,
            ctx,
            penalty=lambda params: lam * tail(params, first),
        )
        fallen = tail(client["params"], first) < tail(before, first)
        pruned = jnp.minimum(rank, jnp.maximum(min_rank, first))
        rows = adapters.to_rows(client["params"]["base"])
        rows = sent_rows(rows, jnp.where(fallen, pruned, rank))
        base = adapters.from_rows(dense(rows))
        return client | {"params": client["params"] | {"base": base}}, rows, result.loss

    def client_update(bucket, client, downlink, data, ctx):
        if prune:
            client, rows, loss = train_and_prune(bucket, client, downlink, data, ctx)
            return client, adapters.uplink_of(client, ctx)._replace(rows=rows), {"loss": loss}
        client, result = train_model(training, bucket, client, data, ctx)
        return client, adapters.uplink_of(client, ctx), {"loss": result.loss}

    def prepare(family, bucket, uplink):
        extractor, rows = adapters.adapted(bucket), dense(uplink.rows)
        norm = adapters.product_norm(rows)
        rows = adapters.scaled(rows, extractor.scale**0.5)
        rows = adapters.padded(rows, adapters.largest_rank(family))
        return uplink._replace(rows=rows), norm

    def server_update(federation, server, received, ctx):
        models = []
        joined = adapters.joined(federation, received, prepare)
        for old, (uploads, norms) in zip(server.models, joined):
            weights = adapters.sample_weights(uploads)
            if weighting == "norms":
                weights = jnp.where(weights > 0, norms, 0)
            rows = mean_or(old.rows, uploads.uplink.rows, weights)
            models.append(Model(rows, adapters.mean_head(old.head, uploads)))
        ranks = server.ranks
        for uploads in received.values() if prune else ():
            sent = rank_of(uploads.uplink.rows)
            ranks = set_rows(ranks, uploads, sent, uploads.arrived & uncut(uploads.uplink.rows))
        return Server(models, ranks), {}

    return Method(
        name="hetlora",
        training=training,
        check=adapters.require_adapters("hetlora"),
        init_server=init_server,
        broadcast=broadcast,
        receive=adapters.receive_model,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(positions="nested"),
    )


def _first_ranks(federation: Federation) -> np.ndarray:
    """Returns the rank of each client's architecture, int32 [num_clients]."""
    ranks = [adapters.adapted(bucket).rank for bucket in federation.buckets]
    return np.array(ranks, np.int32)[np.array(federation.assignment)]
