"""One-shot heads: the server computes a linear head from feature statistics that clients send once.

    client:  of features x in evaluation mode G = sum x x^T, S_c = sum of the x of class c, and N_c
             their number; a client that the server has heard sends nothing
    server:  G, S, N <- G + sum_i G_i, ...; the head is a function of the three

The features come from a frozen extractor, and those of different extractors cannot be added. So
each bucket has its own statistics and its own head, and its clients use the extractor that the
server sends: the weights of the bucket (`Bucket.weights`), or random ones. Buckets share only class
counts.

Sums do not depend on the split of the samples, and no client counts twice. One round with all
clients is enough. After partial rounds, the head covers all clients heard so far. Once all are
heard, further rounds change nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.batches import Batch, add_trees, forward_batch, sum_batches
from fedjax_ht.core.bucket import Bucket, init_variables, model_form, own_features
from fedjax_ht.core.context import Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.samples import Data
from fedjax_ht.core.statistics import normalises_by_batch
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, is_masked
from fedjax_ht.methods.shared.averaging import set_rows
from fedjax_ht.methods.shared.heads import take_head

ABSENT = -1e9
"""The bias of a class that no client has: below any score, and finite, as states must be."""


class Moments(NamedTuple):
    """Sums over samples; K is the width of the features.

    Attributes:
      second: float32 [K (K + 1) / 2], the upper triangle of G, row by row; G is symmetric.
      by_class: float32 [C, K], S.
      counts: float32 [C], N; () where the method needs none.
    """

    second: Any
    by_class: Any
    counts: Any


class Server(NamedTuple):
    """The server's state.

    Attributes:
      models: {"params": {"base", "head"}, "stats"} of each bucket, in the order of `ordered`: the
        frozen extractor and the newest head.
      kept: each bucket's statistics of the clients heard, such as sums, in the same order.
      heard: bool [num_clients], the clients whose sums have arrived.
    """

    models: list[PyTree]
    kept: list[PyTree]
    heard: jax.Array


class Downlink(NamedTuple):
    """A message to a client.

    Attributes:
      model: the model of the client's bucket.
      heard: Metadata(bool), whether the client's sums have arrived.
    """

    model: PyTree
    heard: Metadata


class Total(NamedTuple):
    """The sums of a bucket from which its head is computed.

    Attributes:
      second: float32 [K, K], G.
      by_class: float32 [C, K], S.
      counts: float32 [C], N; () if the method needs none.
      all_counts: float32 [C], the samples of all buckets by class; () likewise.
      clients: int32, the number of the bucket's clients heard.
    """

    second: jax.Array
    by_class: jax.Array
    counts: Any
    all_counts: Any
    clients: jax.Array


def ordered(federation: Federation) -> list[Bucket]:
    """Orders the buckets by their lowest client id."""
    return sorted(federation.buckets, key=federation.members)


def upper_triangle(matrix: jax.Array) -> jax.Array:
    """Lays out the upper triangle of [K, K], row by row."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: jax.Array, width: int) -> jax.Array:
    """Builds the symmetric matrix [width, width] of an upper triangle."""
    upper = jnp.zeros((width, width)).at[np.triu_indices(width)].set(triangle)
    return upper + jnp.triu(upper, 1).T


def client_moments(bucket: Bucket, client: PyTree, data: Data, counted: bool) -> Moments:
    """Sums a client's features over its training samples, in evaluation mode."""

    def of_batch(batch: Batch):
        rows = own_features(bucket, client, batch.x, batch.mask)
        # A padded row may hold anything; zero times NaN would still be NaN.
        rows = jnp.where(batch.mask[:, None], rows, 0)
        labels = jax.nn.one_hot(batch.y, bucket.num_classes) * batch.mask[:, None]
        second = jnp.matmul(rows.T, rows, precision="highest")
        by_class = jnp.matmul(labels.T, rows, precision="highest")
        return second, by_class, labels.sum(0)

    sums = sum_batches(of_batch, data, data.splits["train"], forward_batch())
    second, by_class, counts = sums
    return Moments(upper_triangle(second), by_class, counts if counted else ())


def solve(matrix: jax.Array, right: jax.Array, share: float | jax.Array) -> jax.Array:
    """Solves (A + share tr(A)/K I) X = B by the eigenvalues of A.

    Args:
      matrix: A, float [K, K], symmetric. Coded or noisy sums may have negative eigenvalues; these
        count as 0.
      right: B, float [K, N].
      share: the damping, as a share of the mean eigenvalue.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    values = jnp.maximum(values, 0)
    # Before any sample arrives all eigenvalues are 0.
    damped = jnp.maximum(values + share * values.mean(), jnp.finfo(jnp.float32).tiny)
    multiply = functools.partial(jnp.matmul, precision="highest")
    return multiply(vectors, multiply(vectors.T, right) / damped[:, None])


def linear_head(kernel: jax.Array, bias: jax.Array | float, present: jax.Array) -> PyTree:
    """Makes a head [K, C], [C] that never predicts a class that is not `present` bool [C]."""
    return {"kernel": jnp.where(present, kernel, 0), "bias": jnp.where(present, bias, ABSENT)}


def require_linear_heads(name: str, federation: Federation) -> None:
    """Checks that the head of every bucket is one linear layer, on features of single samples.

    Raises:
      ValueError: a head is not one linear layer, or features depend on the batch. One line.
    """
    for bucket in federation.buckets:
        form = model_form(bucket)
        head = form["params"]["head"]
        if set(head) != {"kernel", "bias"}:
            raise ValueError(
                f"{name} computes one linear layer with a bias, but the head of {bucket.name!r} is "
                f"made of {', '.join(sorted(head))}; choose a group whose heads are linear"
            )
        if normalises_by_batch(bucket):
            raise ValueError(
                f"{name} sums features of single samples, but {bucket.name} normalises by batch; "
                "set model.norm to another one than 'static_batch'"
            )


class Statistics(NamedTuple):
    """The statistics of a one-shot method, from the clients' uploads to the server's heads.

    Attributes:
      init: (federation, bucket) -> the server's statistics of the bucket before any upload.
      of_client: (bucket, client, data, sends bool) -> (uplink, metrics); the uplink is sent only if
        `sends` is True.
      add: (federation, bucket, kept, received) -> (the new statistics; bool [P], the clients whose
        upload counted, and who do not send again: a defence may drop what arrived).
      heads: (federation, [kept of each bucket], [clients heard of each], key) -> [head of each],
        in the order of `ordered`.
      server_reads: "sums" or "uploads", as for `Wire.server_reads`.
      by_clients: True if heads also depend on the number of clients heard.
    """

    init: Callable[[Federation, Bucket], PyTree]
    of_client: Callable[[Bucket, PyTree, Data, jax.Array], tuple[PyTree, dict]]
    add: Callable[[Federation, Bucket, PyTree, Received], tuple[PyTree, jax.Array]]
    heads: Callable[..., list[PyTree]]
    server_reads: Literal["sums", "uploads"]
    by_clients: bool = False


def moments(head_of: Callable[[Total], PyTree], *, counted: bool) -> Statistics:
    """Makes the statistics of a method whose head is a formula of sums.

    Args:
      head_of: (sums) -> {"kernel": [K, C], "bias": [C]}.
      counted: True if clients send their sample counts by class, N.
    """

    def init(federation, bucket):
        k, c = bucket.feature_dim, federation.num_classes
        counts = jnp.zeros(c) if counted else ()
        return Moments(jnp.zeros(k * (k + 1) // 2), jnp.zeros((c, k)), counts)

    def of_client(bucket, client, data, sends):
        sums = client_moments(bucket, client, data, counted)
        square = jnp.trace(symmetric(sums.second, bucket.feature_dim))
        uplink = jax.tree.map(lambda x: Masked(x, sends, FIRST_ROWS), sums)
        # The mean squared length of features; 0 reveals a dead extractor.
        return uplink, {"square": square / jnp.maximum(data.splits["train"].count, 1)}

    def add(federation, bucket, kept, received):
        sums, sent = _sum_sent(received)
        return add_trees(kept, sums), sent

    def heads(federation, kept, clients, key):
        all_counts = sum(sums.counts for sums in kept) if counted else ()
        made = []
        for bucket, sums, heard in zip(ordered(federation), kept, clients):
            second = symmetric(sums.second, bucket.feature_dim)
            made.append(head_of(Total(second, sums.by_class, sums.counts, all_counts, heard)))
        return made

    return Statistics(init, of_client, add, heads, server_reads="sums", by_clients=True)


def one_shot(name: str, training: LocalTraining, statistics: Statistics) -> Method:
    """Makes a one-shot method.

    Args:
      name: the method's name.
      training: a recipe; no client trains by it.
      statistics: the uploads of clients, and the heads made of them.
    """

    def init_server(federation, key):
        models, kept, c = [], [], federation.num_classes
        for i, bucket in enumerate(ordered(federation)):
            model = init_variables(bucket, jax.random.fold_in(key, i))
            zeros = {"kernel": jnp.zeros((bucket.feature_dim, c)), "bias": jnp.zeros(c)}
            models.append(take_head(model, zeros))
            kept.append(statistics.init(federation, bucket))
        return Server(models, kept, jnp.zeros(federation.num_clients, bool))

    def broadcast(federation, bucket, server, ctx):
        model = server.models[ordered(federation).index(bucket)]
        return Downlink(model, Metadata(server.heard[ctx.info.id]))

    def receive(bucket, client, downlink, data, ctx):
        return downlink.model

    def client_update(bucket, client, downlink, data, ctx):
        uplink, metrics = statistics.of_client(bucket, client, data, ~downlink.heard.value)
        return client, uplink, metrics

    def server_update(federation, server, received, ctx):
        heard, kept, clients = server.heard, [], []
        for bucket, before in zip(ordered(federation), server.kept):
            uploads = received[bucket.name]
            after, complete = statistics.add(federation, bucket, before, uploads)
            kept.append(after)
            heard = set_rows(heard, uploads, True, complete)
            clients.append(heard[np.array(federation.members(bucket))].sum())
        new = heard.sum() - server.heard.sum()
        differs = jax.tree.map(lambda a, b: jnp.any(a != b), kept, server.kept)
        heads = jax.lax.cond(
            # Noise changes the sums without a new client, and one without samples no sum.
            (statistics.by_clients & (new > 0)) | jnp.any(jnp.array(jax.tree.leaves(differs))),
            lambda: statistics.heads(federation, kept, clients, ctx.key),
            lambda: [model["params"]["head"] for model in server.models],
        )
        models = list(map(take_head, server.models, heads))
        every = sum(map(federation.num_training, federation.buckets))
        return Server(models, kept, heard), {"heard": heard.sum() / every, "new": new}

    def warn(metrics):
        if metrics["heard"] < 1 or metrics["new"]:
            return None
        return f"{name} has heard from every client; further rounds change nothing"

    return Method(
        name=name,
        training=training,
        check=functools.partial(require_linear_heads, name),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(server_reads=statistics.server_reads),
        view=View(warn=warn),
    )


def _sum_sent(received: Received) -> tuple[PyTree, jax.Array]:
    """Sums the values of uplinks over the clients that arrived and whose statistics are all sent.

    A defence may drop some of a client's. Returns the sums, and bool [P], these clients.
    """
    masks = [leaf.mask for leaf in jax.tree.leaves(received.uplink, is_leaf=is_masked)]
    sent = functools.reduce(jnp.logical_and, masks, jnp.asarray(received.arrived))

    def total(leaf):
        return weighted_sum(leaf.values, sent.astype(jnp.float32))

    return jax.tree.map(total, received.uplink, is_leaf=is_masked), sent
