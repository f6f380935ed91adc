"""Low-rank adapters of several ranks at a server: families, and rows of adapters.

A family is the set of clients whose models differ only in the rank of their adapters. A family's
adapters are sent and averaged by rows: entry j of "lora_a", float [r, ..., inputs], is row j of A,
and entry j of "lora_b", float [r, ..., outputs], is column j of B. A smaller rank holds the first
rows of a larger one. The axes of stacked blocks, if any, lie between the row and the width
(`models.stacking`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import Bucket, init_variables, with_frozen
from fedjax_ht.core.context import Context, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.module_checks import FROZEN
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata, dense
from fedjax_ht.methods.shared.averaging import client_weights, mean_or, sent_samples
from fedjax_ht.models.adapters import (
    A,
    Adapted,
    B,
    is_adapted,
    merged_kernels,
    merged_params,
    unadapted,
)
from fedjax_ht.models.split import SplitModel

RANK_AXIS = {A: -2, B: -1}

Rows = PyTree
"""Adapters by rows: the tree of an extractor's adapted layers, {"lora_a", "lora_b"} each."""


class AdapterUplink(NamedTuple):
    """A client's upload.

    Attributes:
      rows: adapters, or all A or all B of them.
      head: the head; () if it stays with the client.
      num_samples: Metadata(int32), the client's number of training samples.
    """

    rows: Rows
    head: PyTree
    num_samples: Metadata | tuple


class Model(NamedTuple):
    """A family's adapters and head, at the server or in a downlink.

    Attributes:
      rows: adapters, of the family's largest rank at the server, of the client's in a downlink.
      head: the head.
    """

    rows: Rows
    head: PyTree


def require_adapters(name: str) -> Callable[[Federation], None]:
    """Makes the check of a method that exchanges adapters; a `Method.check`.

    Args:
      name: name of the method; the error message starts with it.
    """

    def check(federation: Federation) -> None:
        for bucket in federation.buckets:
            if not is_adapted(bucket.module):
                raise ValueError(
                    f"{name} exchanges low-rank adapters, but model {bucket.name!r} has none; "
                    "adapt it with fl.models.lora (in a config: set model.lora to rank=2,4,8)"
                )

    return check


def adapted(bucket: Bucket) -> Adapted:
    """Returns the extractor of a bucket's models."""
    module: Any = bucket.module  # `require_adapters` has seen it
    return module.base


def families_of(federation: Federation) -> list[list[Bucket]]:
    """Groups buckets whose models differ only in rank, ordered by lowest client id."""
    families: dict[Any, list[Bucket]] = {}
    for bucket in sorted(federation.buckets, key=federation.members):
        module: Any = bucket.module
        families.setdefault(module.clone(base=module.base.clone(rank=1)), []).append(bucket)
    return list(families.values())


def largest(family: list[Bucket]) -> Bucket:
    """Returns the bucket of the family's largest rank."""
    return max(family, key=lambda bucket: adapted(bucket).rank)


def largest_rank(family: list[Bucket]) -> int:
    """Returns the family's largest rank."""
    return adapted(largest(family)).rank


def state_for(federation: Federation, bucket: Bucket, states: list[Any]) -> Any:
    """Returns the state of a bucket's family from a list with one state per family."""
    families = families_of(federation)
    (place,) = (i for i, family in enumerate(families) if bucket in family)
    return states[place]


# Rows


def is_pair(node: Any) -> bool:
    """Returns True for the adapter of a layer, {"lora_a", "lora_b"}, or for one of the two."""
    return isinstance(node, dict) and (A in node or B in node)


def to_rows(adapters: PyTree) -> Rows:
    """Turns adapters as parameters, A [..., r, inputs] and B [..., outputs, r], into rows."""

    def by_rows(pair):
        return {name: jnp.moveaxis(x, RANK_AXIS[name], 0) for name, x in pair.items()}

    return jax.tree.map(by_rows, adapters, is_leaf=is_pair)


def from_rows(rows: Rows) -> PyTree:
    """Inverts `to_rows`."""

    def as_parameters(pair):
        return {name: jnp.moveaxis(x, 0, RANK_AXIS[name]) for name, x in pair.items()}

    return jax.tree.map(as_parameters, rows, is_leaf=is_pair)


def part_of(adapters: PyTree, name: str) -> PyTree:
    """Returns all A or all B of adapters, as parameters or as rows."""
    return jax.tree.map(lambda pair: {name: pair[name]}, adapters, is_leaf=is_pair)


def united(first: PyTree, second: PyTree) -> PyTree:
    """Combines all A and all B, in either order, into adapters."""
    return jax.tree.map(lambda a, b: a | b, first, second, is_leaf=is_pair)


def first_rows(rows: Rows, rank: int) -> Rows:
    """Cuts adapters to the first `rank` rows."""
    return jax.tree.map(lambda x: x[:rank], rows)


def padded(rows: Rows, rank: int) -> Rows:
    """Pads adapters with zeros to `rank` rows."""

    def pad(x):
        return jnp.pad(x, [(0, rank - len(x))] + [(0, 0)] * (x.ndim - 1))

    return jax.tree.map(pad, rows)


def scaled(rows: Rows, factor: float | jax.Array, names: tuple[str, ...] = (A, B)) -> Rows:
    """Multiplies the entries `names` of each layer's adapter by a factor."""

    def scale(pair):
        return {name: x * factor if name in names else x for name, x in pair.items()}

    return jax.tree.map(scale, rows, is_leaf=is_pair)


def pairs_of(rows: Rows) -> list[dict[str, jax.Array]]:
    """Returns the adapters of all layers, in the order of the tree."""
    return jax.tree.leaves(rows, is_leaf=is_pair)


def product_norm(rows: Rows) -> jax.Array:
    """Computes the Frobenius norm of B A over all layers, a float32 scalar."""
    total = jnp.float32(0)
    for pair in pairs_of(rows):
        # |B A|^2 is the sum of the entrywise product of two small matrices, B^T B and A A^T.
        grams = [
            jnp.einsum("r...i,s...i->...rs", pair[name], pair[name], precision="highest")
            for name in (A, B)
        ]
        total += jnp.sum(grams[0] * grams[1])
    return jnp.sqrt(jnp.maximum(total, 0))


# Servers


def init_models(federation: Federation, key: jax.Array) -> list[Model]:
    """Initialises each family's adapters, of its largest rank, and head; a `Method.init_server`."""
    models = []
    for i, family in enumerate(families_of(federation)):
        params = init_variables(largest(family), jax.random.fold_in(key, i))["params"]
        models.append(Model(to_rows(params["base"]), params["head"]))
    return models


def joined(
    federation: Federation,
    received: dict[str, Received],
    prepare: Callable[[list[Bucket], Bucket, PyTree], tuple[AdapterUplink, PyTree]],
) -> list[tuple[Received, PyTree]]:
    """Joins the uplinks of each family, in the order of `gather_received`.

    Args:
      federation: the federation, whose buckets form the families.
      received: the uplinks.
      prepare: (family, bucket, uplink of one of the bucket's clients) -> (an uplink with the same
        shapes for all clients of the family, further values that the server knows).

    Returns:
      For each family, the uplinks and the further values, [P].
    """
    uploads = []
    for family in families_of(federation):
        prepared = {}
        for bucket in family:
            arrived = received[bucket.name]
            uplink = jax.vmap(functools.partial(prepare, family, bucket))(arrived.uplink)
            prepared[bucket.name] = arrived._replace(uplink=uplink)
        gathered = gather_received(prepared)
        uplink, beside = gathered.uplink
        uploads.append((gathered._replace(uplink=uplink), beside))
    return uploads


def with_held(
    family: list[Bucket], bucket: Bucket, uplink: AdapterUplink
) -> tuple[AdapterUplink, jax.Array]:
    """Pads an upload to the family's rank; also returns the rows that the client has, bool [r]."""
    rank = largest_rank(family)
    held = jnp.arange(rank) < adapted(bucket).rank
    return uplink._replace(rows=padded(uplink.rows, rank)), held


def mean_by_rows(rows: Rows, weights: jax.Array, held: jax.Array, old: Rows) -> Rows:
    """Averages each row over the clients that hold it.

    Args:
      rows: stacked adapters [P, r, ...].
      weights: float32 [P], one per client.
      held: bool [P, r], the rows that clients hold.
      old: the previous rows [r, ...], kept where no client holds a row.
    """
    shares = jnp.where(held, weights[:, None], 0)
    total = shares.sum(0)
    shares = shares / jnp.where(total > 0, total, 1)

    def mean(x, before):
        above = (1,) * (x.ndim - 2)  # axes after the rows
        sums = weighted_sum(x, shares.reshape(*shares.shape, *above))
        return jnp.where((total > 0).reshape(-1, *above), sums, before)

    return jax.tree.map(mean, rows, old)


def sample_weights(received: Received) -> jax.Array:
    """Returns weights by number of samples, float32 [P], see `averaging.client_weights`."""
    return client_weights(received, received.uplink.num_samples)


def mean_head(head: PyTree, received: Received) -> PyTree:
    """Averages the heads of uploads; returns `head` if no client with samples arrived."""
    return mean_or(head, received.uplink.head, sample_weights(received))


# Clients


def receive_model(
    bucket: Bucket, client: PyTree, downlink: Model, data: Data, ctx: Context
) -> PyTree:
    """Takes the server's adapters and head; a `Method.receive`."""
    base = from_rows(dense(downlink.rows))
    return client | {"params": {"base": base, "head": downlink.head}}


def uplink_of(client: PyTree, ctx: Context) -> AdapterUplink:
    """Makes an upload of a client's adapters and head."""
    params = client["params"]
    return AdapterUplink(to_rows(params["base"]), params["head"], sent_samples(ctx, "samples"))


def plain_model(bucket: Bucket, model: PyTree) -> tuple[nn.Module, PyTree]:
    """Returns an equivalent module without adapters and its variables {"params", "stats"}.

    Each adapter's product is added to the kernel that it adapts.

    Args:
      bucket: the bucket of the client; models without adapters are returned unchanged.
      model: the client's {"params", "stats"}, with FLoRA also its sum of products "total".
    """
    module, params = bucket.module, model["params"]
    if isinstance(module, SplitModel) and isinstance(module.base, Adapted):
        bucket = with_frozen(bucket)
        if "total" in model:
            bucket = with_products(bucket, model["total"])
        params = merged_params(module.base.scale, params, bucket.weights[FROZEN])
    return unadapted(module), {"params": params, "stats": model["stats"]}


def with_products(bucket: Bucket, products: PyTree) -> Bucket:
    """Adds matrices [..., inputs, outputs] to the frozen kernels of a bucket's adapted layers."""
    frozen = bucket.weights[FROZEN]
    base = merged_kernels(frozen["base"], products)
    return dataclasses.replace(bucket, weights=bucket.weights | {FROZEN: frozen | {"base": base}})
