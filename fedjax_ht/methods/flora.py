"""FLoRA (Wang et al., NeurIPS 2024): adapters are stacked and merged into the extractor.

    client:  W_i <- W_i + B A of the last round's stack; new random A_i, B_i = 0; head_i <- head;
             then local epochs of cross-entropy
    server:  A <- [p_1 s_1 A_1; p_2 s_2 A_2; ...], B <- [B_1, B_2, ...], p_i = n_i / sum_j n_j and
             s_i = alpha / r_i; averages the heads by samples
    predict: the client's merged extractor and head, with what training has made of A_i and B_i
    up:      L + H: adapters of the client's rank, and the head
    down:    L' + H, L' all L of the last round: the stack of all who sent one, and the head; all of
             B A so far to a client that has missed a stack
    fits:    adapters of several ranks (`config.model.lora`), few clients a round, since the stack
             grows with them
    paper:   https://arxiv.org/abs/2409.05976

Settled here:
* B A is the mean of the products exactly. The paper has one scale for all ranks, as here with
  `config.model.lora_alpha` 0; with other values each rank has its own.
* No client keeps an adapter. It keeps W_i as the sum of the products beside the frozen weights, and
  the server has the same sum. A client adds each stack once, by the number of its round.
* A client is up to date as of the round of its last upload that arrived. If it has missed more than
  the last stack, it gets the sum itself, [inputs, outputs] of each layer.
* Clients without samples are not in the stack; if no client has samples, the sum does not change.
  The head is averaged by samples. Batch statistics stay with each client.
* The released code's FedIT, a baseline in its tables, keeps the first client's adapter alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket, head_scores, init_variables, own_features
from fedjax_ht.core.context import Received
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.trees import PyTree, select, zeros_of
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, dense
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import AdapterUplink, Rows
from fedjax_ht.methods.shared.averaging import set_rows
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.models.adapters import A, B

NEVER = -2
"""Round number of a stack that was never made."""


class Stack(NamedTuple):
    """The server's state of one family.

    Attributes:
      rows: A and B of the last stack, float [S, ...] each; S is the sum of the family's ranks, and
        each client has its own rows.
      held: bool [S], the rows of clients that sent one.
      total: the sum of all products B A, float [..., inputs, outputs] of each layer.
      head: the head.
      made, before: int32, the rounds of the last stack and of the one before.
    """

    rows: Rows
    held: jax.Array
    total: PyTree
    head: PyTree
    made: jax.Array
    before: jax.Array


class Server(NamedTuple):
    """The server's state.

    Attributes:
      stacks: one entry per family.
      heard: int32 [num_clients], the round of each client's last upload that arrived, or -1.
    """

    stacks: list[Stack]
    heard: jax.Array


class Downlink(NamedTuple):
    """A message to a client, with the stack, the total or neither.

    Attributes:
      rows: the stack, `Masked` by row, with the sent rows first.
      total: the sum of all products, each `Masked` as a whole.
      head: the head.
      made: Metadata(int32), the round of the last stack.
    """

    rows: Rows
    total: PyTree
    head: PyTree
    made: Metadata


def products_of(rows: Rows) -> PyTree:
    """Computes A^T B^T, float [..., inputs, outputs] of each layer, summed over rows."""

    def product(pair):
        return jnp.einsum("s...i,s...o->...io", pair[A], pair[B], precision="highest")

    return jax.tree.map(product, rows, is_leaf=adapters.is_pair)


def stacked(
    uploads: Received, held: jax.Array, places: np.ndarray, size: int
) -> tuple[Rows, jax.Array]:
    """Stacks a family's adapters, each A times the client's share of the samples.

    Args:
      uploads: an `AdapterUplink` of each client.
      held: bool [P, r], the rows that each client holds.
      places: int [num_clients], each client's first row in the stack.
      size: the number of rows.

    Returns:
      The rows, float [size, ...], zeros if not sent; and bool [size], the sent rows.
    """
    weights = adapters.sample_weights(uploads)
    shares = weights / jnp.maximum(weights.sum(), jnp.finfo(jnp.float32).tiny)
    first = jnp.asarray(places)[jnp.where(uploads.arrived, uploads.info.id, 0)]
    where = first[:, None] + jnp.arange(held.shape[1])
    # Rows that were not sent may hold NaN: an index out of range drops them.
    where = jnp.where(held & (shares > 0)[:, None], where, size).ravel()

    def put(x):
        return (
            jnp.zeros((size, *x.shape[2:])).at[where].set(x.reshape(-1, *x.shape[2:]), mode="drop")
        )

    def put_pair(pair):
        a, b = pair[A], pair[B]
        return {A: put(a * shares.reshape(-1, *(1,) * (a.ndim - 1))), B: put(b)}

    rows = jax.tree.map(put_pair, uploads.uplink.rows, is_leaf=adapters.is_pair)
    return rows, jnp.zeros(size, bool).at[where].set(True, mode="drop")


def _prepare(family: list[Bucket], bucket: Bucket, uplink: AdapterUplink):
    """Scales an upload's A and pads it to the family's rank; also returns the rows it holds."""
    rows = adapters.scaled(uplink.rows, adapters.adapted(bucket).scale, (A,))
    return adapters.with_held(family, bucket, uplink._replace(rows=rows))


@checked
def flora(training: LocalTraining) -> Method:
    """Makes FLoRA, described in the module's docstring.

    Args:
      training: local training.
    """

    def init_server(federation, key):
        stacks = []
        families = adapters.families_of(federation)
        for family, model in zip(families, adapters.init_models(federation, key)):
            size = _places(federation, family)[1]
            rows = jax.tree.map(lambda x, n=size: jnp.zeros((n, *x.shape[1:])), model.rows)
            never = jnp.int32(NEVER)
            stacks.append(
                Stack(
                    rows=rows,
                    held=jnp.zeros(size, bool),
                    total=products_of(rows),
                    head=model.head,
                    made=never,
                    before=never,
                )
            )
        return Server(stacks, jnp.full(federation.num_clients, -1, jnp.int32))

    def broadcast(federation, bucket, server, ctx):
        stack = adapters.state_for(federation, bucket, server.stacks)
        heard = server.heard[ctx.info.id]
        behind = stack.before >= heard
        last_alone = ~behind & (stack.made >= heard)
        # Sent rows come first, so that their number identifies them.
        order = jnp.argsort(~stack.held, stable=True)
        mask = stack.held[order] & last_alone
        return Downlink(
            rows=jax.tree.map(lambda x: Masked(x[order], mask, FIRST_ROWS), stack.rows),
            total=jax.tree.map(lambda x: Masked(x, behind, FIRST_ROWS), stack.total),
            head=stack.head,
            made=Metadata(stack.made),
        )

    def init_client(bucket, ctx):
        client = init_variables(bucket, ctx.key)
        base = client["params"]["base"]
        form = jax.eval_shape(lambda base: products_of(adapters.to_rows(base)), base)
        total = zeros_of(form)
        return client | {"total": total, "merged": jnp.int32(NEVER)}

    def receive(bucket, client, downlink, data, ctx):
        made = downlink.made.value
        added = jax.tree.map(jnp.add, client["total"], products_of(dense(downlink.rows)))
        # If the client's upload was lost, the same stack is sent again: add it once.
        total = select(client["merged"] < made, added, client["total"])
        sent = jax.tree.leaves(downlink.total, is_leaf=lambda x: isinstance(x, Masked))[0].mask
        total = select(sent, dense(downlink.total), total)
        fresh = init_variables(bucket, ctx.key)["params"]["base"]
        params = {"base": fresh, "head": downlink.head}
        return client | {"params": params, "total": total, "merged": made}

    def client_update(bucket, client, downlink, data, ctx):
        merged = adapters.with_products(bucket, client["total"])
        client, result = train_model(training, merged, client, data, ctx)
        return client, adapters.uplink_of(client, ctx), {"loss": result.loss}

    def predict(bucket, client, downlink, x, mask):
        merged = adapters.with_products(bucket, client["total"])
        return {"head": head_scores(merged, client, x, mask)}

    def features(bucket, client, x, mask):
        return own_features(adapters.with_products(bucket, client["total"]), client, x, mask)

    def server_update(federation, server, received, ctx):
        stacks, heard, round = [], server.heard, ctx.round.astype(jnp.int32)
        joined = adapters.joined(federation, received, _prepare)
        families = adapters.families_of(federation)
        for family, old, (uploads, held) in zip(families, server.stacks, joined):
            rows, held = stacked(uploads, held, *_places(federation, family))
            new = Stack(
                rows=rows,
                held=held,
                total=jax.tree.map(jnp.add, old.total, products_of(rows)),
                head=adapters.mean_head(old.head, uploads),
                made=round,
                before=old.made,
            )
            stacks.append(select(held.any(), new, old))
        for uploads in received.values():
            heard = set_rows(heard, uploads, round)
        return Server(stacks, heard), {}

    return Method(
        name="flora",
        training=training,
        check=adapters.require_adapters("flora"),
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        predict=predict,
        server_update=server_update,
        # A late upload was trained on an older sum, and its sender is not up to date.
        wire=Wire(positions="own", redrawn=True),
        view=View(features=features),
    )


def _places(federation, family: list[Bucket]) -> tuple[np.ndarray, int]:
    """Returns each client's first row in the stack, int [num_clients], and the number of rows.

    Clients of other families have none.
    """
    ranks = np.zeros(federation.num_clients, np.int64)
    for bucket in family:
        ranks[list(federation.members(bucket))] = adapters.adapted(bucket).rank
    ends = np.cumsum(ranks)
    return ends - ranks, int(ends[-1])
