"""The players of `checking`: clients with few samples, and samples that no client may read."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.federation import Federation, PublicSet, make_federation
from fedjax_ht.core.inputs import InputShape, abstract, usual_rule
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.models import mlp

CLIENTS = 3  # clients played of each bucket
BRIGHT = 100.0  # a masked sample's pixels: not NaN, since zero times NaN is NaN in any gradient


class Player(NamedTuple):
    """A client that is played: its bucket, its `ClientInfo` and its samples."""

    bucket: Bucket
    info: ClientInfo
    split: Split


class Pool(NamedTuple):
    """The samples of all players, with the public set as a split; the last sample is no client's,
    and differs in `spoiled`."""

    plain: Data
    spoiled: Data


def small_federation() -> Federation:
    """Makes six clients with two perceptrons of one feature width, for grey 4x4 images."""
    models = {"narrow": mlp(3, (8,)), "wide": mlp(3, (12, 8))}
    return make_federation(models, (4, 4, 1), 3, num_clients=2 * CLIENTS)


def with_public_set(federation: Federation, method: Method) -> Federation:
    """Returns the federation with a public set as large as the method needs, unless it has one."""
    if not method.public_samples or federation.public is not None:
        return federation
    return dataclasses.replace(federation, public=PublicSet(method.public_samples))


def cast(method: Method, federation: Federation) -> tuple[list[Player], Pool]:
    """Chooses the first clients of every bucket and draws their samples; no two clients share one.

    Indices past a split's count point to the last sample, which is no client's.
    """
    batch = method.training.batch_size
    counts = (max(1, batch // 2), batch + (batch + 1) // 2, 0)
    places = []
    for bucket in federation.buckets:
        members = federation.members(bucket)[:CLIENTS]
        places += [(bucket, i, count) for i, count in zip(members, counts)]
    shape, owned = federation.buckets[0].input_shape, sum(count for _, _, count in places)
    public = np.arange(0 if federation.public is None else federation.public.samples)
    total = owned + len(public)
    width, start, players = max(counts) + batch, 0, []
    for bucket, i, count in places:
        info = ClientInfo(np.int32(i), np.int32(count), np.int32(-1))
        indices = np.arange(start, start + count, dtype=np.int32)
        split = filled(Split(indices, np.int32(count)), width - count, np.full(width, total))
        players.append(Player(bucket, info, split))
        start += count
    rng = np.random.default_rng(0)
    labels = rng.integers(0, federation.num_classes, total + 1).astype(np.int32)
    inputs = _samples(shape, total + 1, rng)
    splits = {}
    if method.public_samples:
        splits[PUBLIC] = Split(owned + public.astype(np.int32), np.int32(len(public)))
    plain = Data(inputs=inputs, labels=labels, preprocess=usual_rule(shape), splits=splits)
    inputs, labels = jax.tree.map(np.copy, (inputs, labels))
    for x in jax.tree.leaves((inputs, labels)):
        x[-1] = BRIGHT if x.dtype.kind == "f" else 1 - x[-1]
    return players, Pool(plain, plain._replace(inputs=inputs, labels=labels))


def _samples(shape: InputShape, count: int, rng: np.random.Generator) -> PyTree:
    """Draws samples: floats in [0, 1), integers 0 or 1."""

    def draw(x):
        if jnp.issubdtype(x.dtype, jnp.floating):
            return rng.random(x.shape).astype(x.dtype)
        return rng.integers(0, 2, x.shape).astype(x.dtype)

    return jax.tree.map(draw, abstract(shape, count))


def filled(split: Split, columns: int, filler: np.ndarray) -> Split:
    """Widens splits [..., max] by some columns and puts `filler` past every count.

    Args:
      split: one client's, or stacked.
      columns: number of columns to add.
      filler: int [max + columns], or with the leading axes of the split.
    """
    indices, count = np.asarray(split.indices), np.asarray(split.count)
    indices = np.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, columns)])
    real = np.arange(indices.shape[-1]) < count[..., None]
    return Split(np.where(real, indices, filler).astype(np.int32), count)


def replaced(tree: PyTree, where: jax.Array, values: Mapping[str, Any]) -> PyTree:
    """Puts values in place of all numbers, by kind of dtype ("f", "i", "b"), where a flag is set.

    Args:
      tree: arrays; those of other kinds stay.
      where: bool, a scalar or one for each row of all arrays.
      values: kind -> value; arrays of a kind without a value stay.
    """
    kinds = {"f": jnp.floating, "i": jnp.integer, "b": jnp.bool_}

    def with_values(x):
        for kind, dtype in kinds.items():
            if kind in values and jnp.issubdtype(x.dtype, dtype):
                flags = jnp.reshape(where, where.shape + (1,) * (x.ndim - where.ndim))
                return jnp.where(flags, values[kind], x)
        return x

    return jax.tree.map(with_values, tree)
