"""FlexLoRA (Bai et al., NeurIPS 2024): the mean of the products, cut to each rank by its SVD.

    client:  A_i, B_i, head_i <- what comes down, then local epochs of cross-entropy
    server:  D = sum_i n_i s_i B_i A_i / sum_i n_i, s_i = alpha / r_i, of each layer; D = U S V^T;
             sends rank r: A = V_r^T, B = U_r S_r / s_r; averages the heads by samples
    predict: the client's copy of adapters and head
    up:      L + H: adapters of the client's rank, and the head
    down:    L + H: adapters of the client's rank, and the head
    fits:    adapters of several ranks (`config.model.lora`), on one trained extractor or a few
    paper:   https://arxiv.org/abs/2402.11505

Settled here:
* D is decomposed by its factors: by QR of the stacked [B_i] and [A_i] and the SVD of a small
  matrix, with the same result.
* The sign of singular vectors is arbitrary: here the largest entry of each row of A is positive. If
  a singular value is zero, its vectors are arbitrary: the row of A then does not change, and B is
  zero.
* The head is averaged by samples. Batch statistics stay with each client.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.trees import select
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import Model, Rows
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.models.adapters import A, B


def singular_rows(a: jax.Array, b: jax.Array, old: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Decomposes B^T A, the product of stacked factors, and keeps its first components.

    Args:
      a: float [m, inputs], the rows of A.
      b: float [m, outputs], the columns of B.
      old: float [r, inputs], rows to use where a component is missing.

    Returns:
      float [r, inputs], right singular vectors, and float [r, outputs], left ones times their
      singular values.
    """
    left, left_factor = jnp.linalg.qr(b.T)
    # One after another: on CPU two concurrent large decompositions, or a stack of them, may
    # deadlock on each other's threads (jaxlib 0.10.2, two cores).
    a, left, left_factor = jax.lax.optimization_barrier((a, left, left_factor))
    right, right_factor = jnp.linalg.qr(a.T)
    right, right_factor = jax.lax.optimization_barrier((right, right_factor))
    core = jnp.matmul(left_factor, right_factor.T, precision="highest")
    u, values, v = jnp.linalg.svd(core, full_matrices=False)
    columns = jnp.matmul(left, u * values, precision="highest").T
    rows = jnp.matmul(v, right.T, precision="highest")
    largest = jnp.take_along_axis(rows, jnp.abs(rows).argmax(1)[:, None], 1)
    sign = jnp.where(largest < 0, -1, 1)
    # Smaller values are rounding, and their vectors arbitrary.
    smallest = jnp.finfo(a.dtype).eps * max(core.shape) * values.max(initial=0)
    rank, present = len(old), (values > smallest)[:, None]
    missing = max(0, rank - len(values))
    rows, columns, present = (
        jnp.pad(x, ((0, missing), (0, 0)))[:rank] for x in (rows * sign, columns * sign, present)
    )
    return jnp.where(present, rows, old), jnp.where(present, columns, 0)


def mean_product(rows: Rows, weights: jax.Array, old: Rows, held: jax.Array | None = None) -> Rows:
    """Computes adapters whose product is the weighted mean of products, cut to their rank.

    Args:
      rows: stacked adapters [P, r, ...].
      weights: float32 [P], one per client, not normalised.
      old: the previous adapters [r, ...].
      held: bool [P, r], clients that a row's product is averaged over; None for all.
    """
    of_rows = weights[:, None] if held is None else jnp.where(held, weights[:, None], 0)
    shares = of_rows / jnp.maximum(of_rows.sum(0), jnp.finfo(jnp.float32).tiny)

    def decompose(pair, before):
        a, b = (_stacked(pair[name], shares, weigh=name == B) for name in (A, B))
        each_layer = singular_rows
        for _ in range(a.ndim - 2):  # axes of blocks
            each_layer = _one_after_another(each_layer)
        a, b = each_layer(a, b, before[A])
        return {A: a, B: b}

    pairs, structure = jax.tree.flatten(rows, is_leaf=adapters.is_pair)
    new: list[Rows] = []
    for pair, before in zip(pairs, structure.flatten_up_to(old)):
        if new:  # one layer after another, see `singular_rows`
            pair, new[-1] = jax.lax.optimization_barrier((pair, new[-1]))
        new.append(decompose(pair, before))
    return jax.tree.unflatten(structure, new)


def _one_after_another(decompose: Callable) -> Callable:
    """Maps a function of arrays over their second axis, see `singular_rows`."""

    def mapped(*arrays):
        results = jax.lax.map(lambda each: decompose(*each), [x.swapaxes(0, 1) for x in arrays])
        return tuple(x.swapaxes(0, 1) for x in results)

    return mapped


def _stacked(x: jax.Array, shares: jax.Array, weigh: bool) -> jax.Array:
    """Joins the rows of all clients [P, r, ...], times their shares [P, r or 1] if `weigh`."""
    shares = shares.reshape(*shares.shape, *(1,) * (x.ndim - 2))
    present = jnp.where(shares > 0, x, 0)
    stacked = present * shares if weigh else present
    return stacked.reshape(-1, *x.shape[2:])


@checked
def flexlora(training: LocalTraining) -> Method:
    """Makes FlexLoRA, described in the module's docstring.

    Args:
      training: local training.
    """
    return decomposing("flexlora", training)


def decomposing(name: str, training: LocalTraining, by_rank: bool = False) -> Method:
    """Makes a method whose server decomposes a mean of products.

    Args:
      name: the method's name.
      training: local training.
      by_rank: True averages the product of each row over the clients whose rank has it; False over
        all, as if the others had zeros.
    """

    def broadcast(federation, bucket, server, ctx):
        model, extractor = adapters.state_for(federation, bucket, server), adapters.adapted(bucket)
        rows = adapters.first_rows(model.rows, extractor.rank)
        return model._replace(rows=adapters.scaled(rows, 1 / extractor.scale, (B,)))

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        return client, adapters.uplink_of(client, ctx), {"loss": result.loss}

    def prepare(family, bucket, uplink):
        rows = adapters.scaled(uplink.rows, adapters.adapted(bucket).scale, (B,))
        return adapters.with_held(family, bucket, uplink._replace(rows=rows))

    def server_update(federation, server, received, ctx):
        new = []
        joined = adapters.joined(federation, received, prepare)
        for old, (uploads, held) in zip(server, joined):
            weights, rows = adapters.sample_weights(uploads), uploads.uplink.rows
            rows = mean_product(rows, weights, old.rows, held if by_rank else None)
            model = Model(rows, adapters.mean_head(old.head, uploads))
            new.append(select(weights.any(), model, old))
        return new, {}

    return Method(
        name=name,
        training=training,
        check=adapters.require_adapters(name),
        init_server=adapters.init_models,
        broadcast=broadcast,
        receive=adapters.receive_model,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(positions="nested"),
    )
