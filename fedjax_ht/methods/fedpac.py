"""FedPAC (Xu et al., ICLR 2023): aligned features, and heads mixed from clients with like features.

    client:  (base, head_i, P) <- the server's; with phi its features so far and p_c the share of
             its samples of class c, h_i^c = p_c mean(phi of c) and
             V_i = (mean |phi|^2 - sum_c |h_i^c|^2) / n_i; trains the head for an epoch, the
             extractor being fixed, then the extractor for local epochs on CE and lam times the mean
             square to P of the sample's class, the head being fixed; uploads both, h_i, V_i and its
             class means m_i^c, with their numbers of samples n_i^c
    server:  base <- sum_i n_i base_i / sum_i n_i; P^c <- sum_i n_i^c m_i^c / sum_i n_i^c; for each
             client i that sent, head_i <- sum_j a_j head_j, a on the simplex minimising
             sum_j a_j^2 V_j + |h_i - sum_j a_j h_j|^2
    predict: the averaged extractor and the client's head
    up:      W + 2 C_i K + 1: the model, h_i and class means, V_i
    down:    W + C' K: the extractor, the client's head, P of the classes that ever came
    fits:    one architecture or a few, clients whose classes differ while a class looks alike; tens
             of participants, as the server keeps a head for each client
    paper:   https://arxiv.org/abs/2306.11867

Settled here:
* a^T (diag(V) + D_i) a of the paper, with D_i[j, l] = <h_i - h_j, h_i - h_l>, is the sum above for
  any a on the simplex. Accelerated projected gradients minimise it, instead of a solver of
  quadratic programs. As in the authors' code (JianXu95/FedPAC), shares below 0.001 become 0 and the
  rest is divided by its sum.
* variant="pfllib" is PFLlib's form: class means have equal weights, and the remaining shares are
  not divided by their sum.
* h_i and class means are taken in evaluation mode; h_i before training, class means after.
* A class that no client sent keeps its P, and a class without P has no pull, as in PFLlib. The
  authors' code pulls such samples to the client's own class mean before training.
* The head trains at the rate of the extractor. In the authors' code its rate is always 0.1.
* Statistics, heads and clients are matched by id. PFLlib shuffles the uploaded heads but keeps
  statistics in the order of selection, so that a client gets the shares of another.
* lam is 1, and the mean square is over entries, as in both codes.
* The paper has one architecture; here every architecture has its own server. Batch statistics stay
  with each client, as in `fedavg`.
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax.projections import projection_simplex

from fedjax_ht.check.options import Count, NonNegative, SearchRange, checked
from fedjax_ht.core.batches import class_means, sum_by_class
from fedjax_ht.core.bucket import Bucket, own_features
from fedjax_ht.core.context import Received
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.losses import sample_prototype_mse
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.architectures import groups_of, init_parts, joined, part_for
from fedjax_ht.methods.shared.averaging import client_weights, keep_present, set_rows, weighted_mean
from fedjax_ht.methods.shared.supervised import train_model

Variant = Literal["paper", "pfllib"]

ITERATIONS = 500
"""Accelerated steps towards the shares a; the value is then within 2 L / 500^2 of the least."""
LEAST_SHARE = 1e-3
LOWEST = -1e9
"""A coordinate that no projection on the simplex keeps."""


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      params: the client's model {"base", "head"}.
      classes: Masked float32 [C, 2 K], for each class h_i, followed by the class mean.
      variance: float32 scalar, V_i.
      label_counts: Metadata(int32 [C]), the client's training samples by class.
    """

    params: PyTree
    classes: Masked
    variance: jax.Array
    label_counts: Metadata


class Server(NamedTuple):
    """The server's state of one architecture.

    Attributes:
      base: the extractor.
      heads: the latest head of each client of the federation, with a leading axis.
      means: Masked float32 [C, K], P.
    """

    base: PyTree
    heads: PyTree
    means: Masked


def onto_simplex(values: jax.Array, valid: jax.Array) -> jax.Array:
    """Projects float [P] on the simplex of the coordinates `valid` bool [P]; the others are 0."""
    return jnp.where(valid, projection_simplex(jnp.where(valid, values, LOWEST)), 0)


def head_shares(
    rows: jax.Array, variances: jax.Array, valid: jax.Array, *, scaled: bool
) -> jax.Array:
    """Computes every client's shares of the heads; those below `LEAST_SHARE` become 0.

    Args:
      rows: float [P, D], each client's h.
      variances: float [P], each client's V.
      valid: bool [P], clients that arrived and have samples; others get no shares, and their heads
        have none.
      scaled: True divides the remaining shares by their sum.

    Returns:
      float32 [P, P], row i the shares a of client i.
    """
    rows = jnp.where(valid[:, None], rows, 0)
    # What all rows share cancels on the simplex. It would take the digits of their differences, and
    # make the steps too short to arrive.
    centre = rows.sum(0) / jnp.maximum(valid.sum(), 1)
    rows = jnp.where(valid[:, None], rows - centre, 0)
    products = rows @ rows.T
    quadratic = products + jnp.diag(jnp.where(valid, variances, 0))
    # Gershgorin's bound of the largest eigenvalue: the slope 2 (a M - G_i) has twice that.
    step = 1 / jnp.maximum(2 * jnp.max(jnp.sum(jnp.abs(quadratic), 1)), 1e-30)
    project = jax.vmap(onto_simplex, (0, None))

    def descend(_, carry):
        shares, ahead, momentum = carry
        new = project(ahead - step * 2 * (ahead @ quadratic - products), valid)
        next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / next_momentum * (new - shares)
        return new, ahead, next_momentum

    start = project(jnp.zeros_like(products), valid)
    shares, _, _ = lax.fori_loop(0, ITERATIONS, descend, (start, start, jnp.float32(1)))
    shares = jnp.where((shares >= LEAST_SHARE) & valid[:, None], shares, 0)
    if scaled:
        shares = shares / jnp.maximum(shares.sum(1, keepdims=True), LEAST_SHARE)
    return shares


def feature_statistics(bucket: Bucket, client: PyTree, data: Data) -> tuple[jax.Array, jax.Array]:
    """Computes h, float32 [C, K], and V of a client's features, in evaluation mode."""

    def rows_and_squares(x, mask):
        rows = own_features(bucket, client, x, mask)
        return jnp.concatenate([rows, jnp.sum(rows * rows, -1, keepdims=True)], 1)

    sums = sum_by_class(rows_and_squares, data, bucket.num_classes)
    count = jnp.maximum(sums.counts.sum(), 1)
    shares = sums.sums / count
    moments, square = shares[:, :-1], shares[:, -1].sum()
    return moments, (square - jnp.sum(moments * moments)) / count


def serve(old: Server, uploads: Received, variant: Variant) -> Server:
    """Computes the next state of one architecture's server.

    Args:
      old: the state so far.
      uploads: uploads of the architecture's clients.
      variant: an option of `fedpac`.
    """
    uplink = uploads.uplink
    counts = uplink.label_counts.value
    weights = client_weights(uploads, Metadata(counts.sum(1)))
    valid = weights > 0
    present = uplink.classes.mask & uploads.arrived[:, None]
    moments, means = jnp.split(jnp.where(present[..., None], uplink.classes.values, 0), 2, -1)
    rows = moments.reshape(len(valid), -1)
    shares = head_shares(rows, uplink.variance, valid, scaled=variant == "paper")

    def mixed(stacked, rows):
        new = jnp.tensordot(shares, rows, 1)
        return set_rows(stacked, uploads, new, valid)

    heads = jax.tree.map(mixed, old.heads, keep_present(uplink.params["head"], valid))
    sent = present.any(0)
    values = prototypes.mean_by_class(means, present, counts if variant == "paper" else None)
    new = Server(
        base=weighted_mean(uplink.params["base"], weights),
        heads=heads,
        means=Masked(jnp.where(sent[:, None], values, old.means.values), old.means.mask | sent),
    )
    return select(weights.any(), new, old)


@checked
def fedpac(
    training: LocalTraining,
    lam: Annotated[NonNegative, SearchRange(0.1, 10.0)] = 1.0,
    head_epochs: Count = 1,
    *,
    variant: Variant = "paper",
) -> Method:
    """Makes FedPAC, described in the module's docstring.

    Args:
      training: local training, of the extractor; the head takes the same with `head_epochs`.
      lam: weight of the pull of features towards the means of their classes.
      head_epochs: passes over the client's samples in which its head is trained.
      variant: the form of the paper and its authors' code, or that of PFLlib; see the module's
        docstring for their differences.
    """
    of_head = dataclasses.replace(training, epochs=head_epochs, steps=None)

    def init_server(federation, key):
        servers = []
        for (bucket, *_), model in zip(groups_of(federation), init_parts(federation, key)):
            n, shape = federation.num_clients, (federation.num_classes, bucket.feature_dim)
            heads = jax.tree.map(lambda x, n=n: jnp.broadcast_to(x, (n, *x.shape)), model["head"])
            servers.append(Server(model["base"], heads, prototypes.no_prototypes(*shape)))
        return servers

    def broadcast(federation, bucket, server, ctx):
        group = part_for(federation, bucket, server)
        head = jax.tree.map(lambda x: x[ctx.info.id], group.heads)
        return {"base": group.base, "head": head}, group.means

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": downlink[0]}

    def client_update(bucket, client, downlink, data, ctx):
        moments, variance = feature_statistics(bucket, client, data)
        means = downlink[1]

        def pull(rows, batch):
            distance = sample_prototype_mse(rows, batch.y, batch.mask, means.values, means.mask)
            return lam * distance

        client, _ = train_model(of_head, bucket, client, data, ctx, part="head")
        ctx = ctx._replace(key=jax.random.fold_in(ctx.key, 1))
        client, result = train_model(
            training, bucket, client, data, ctx, part="base", regulariser=pull
        )
        sums = prototypes.class_sums(bucket, client, data)
        rows = jnp.concatenate([moments, class_means(sums)], 1)
        uplink = Uplink(
            params=client["params"],
            classes=Masked(rows, sums.counts > 0),
            variance=variance,
            label_counts=Metadata(sums.counts.astype(jnp.int32)),
        )
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        uploads = joined(federation, received)
        return [serve(old, new, variant) for old, new in zip(server, uploads)], {}

    return Method(
        name="fedpac",
        training=training,
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
    )
