"""Batches of a client's samples, their order, and per-class sums over them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int, Key, Shaped

from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree, zeros_of


class Batch(NamedTuple):
    """A batch of samples.

    Attributes:
      x: the model's input, such as images float32 [B, H, W, C].
      y: labels int32 [B]; for tasks other than classification, targets [B, ...].
      mask: bool [B], False marks padding.
    """

    x: PyTree
    y: Shaped[Array, " B *target"]
    mask: Bool[Array, " B"]


class ClassSums(NamedTuple):
    """Sums over samples by class: `sums` float32 [C, D], `counts` float32 [C]."""

    sums: Float[Array, "C D"]
    counts: Float[Array, " C"]


def inputs_at(data: Data, index: Int[HostArray, " B"]) -> PyTree:
    """Returns the model's input of the samples at indices int32 [B]."""
    return data.preprocess(jax.tree.map(lambda x: x[index], data.inputs))


def take_batch(
    data: Data,
    order: Int[HostArray, " samples"],
    count: Int[HostNumber, ""],
    start: Int[Array, ""] | int,
    size: int,
) -> Batch:
    """Takes `size` samples of `order` from `start`; positions at or past `count` are masked out."""
    positions = start + jnp.arange(size)
    # A position past the end reads an arbitrary sample, which is masked.
    index = order[jnp.minimum(positions, order.shape[0] - 1)]
    return Batch(inputs_at(data, index), data.labels[index], positions < count)


def shuffled(key: Key[Array, ""], split: Split) -> Int[Array, " samples"]:
    """Returns the split's indices in random order, padding last.

    The order does not depend on the length of the padding.
    """
    positions = jnp.arange(split.indices.shape[0])
    # Sort by random bits, whose top bit marks padding. The result of jax.random.permutation would
    # depend on the padded length.
    bits = jax.random.bits(key, positions.shape, jnp.uint32) >> 1
    bits = jnp.where(positions < split.count, bits, jnp.uint32(1 << 31))
    return split.indices[jnp.argsort(bits, stable=True)]


def class_sums(rows: Float[Array, "B D"], batch: Batch, num_classes: int) -> ClassSums:
    """Sums rows float [B, D] by label, without masked samples."""
    membership = jax.nn.one_hot(batch.y, num_classes) * batch.mask[:, None]  # [B, C]
    # A padded row may hold any value: zero times NaN would still be NaN.
    return ClassSums(membership.T @ jnp.where(batch.mask[:, None], rows, 0), membership.sum(0))


def class_means(sums: ClassSums) -> Float[Array, "C D"]:
    """Returns the per-class means, float32 [C, D]; zero for a class without samples."""
    return sums.sums / jnp.maximum(sums.counts, 1)[:, None]


def forward_batch() -> int:
    """Returns the batch size for forward passes in evaluation mode.

    On CPU it is small, so that a layer's outputs stay in the cache. Results depend on it only with
    norms that take their statistics from the batch ("static_batch").
    """
    return 16 if jax.default_backend() == "cpu" else 64


def sum_by_class(
    extract: Callable[[PyTree, Bool[Array, " B"]], Float[Array, "B D"]],
    data: Data,
    num_classes: int,
    batch_size: int | None = None,
    split: str = "train",
) -> ClassSums:
    """Sums rows by class in one pass over a split, in stored order (e.g. for prototypes).

    Args:
      extract: (x, mask bool [B]) -> rows float [B, D].
      data: the client's view of the data.
      num_classes: number of classes, C.
      batch_size: samples per forward pass; None for `forward_batch()`.
      split: key of `data.splits`.
    """

    def of_batch(batch: Batch) -> ClassSums:
        return class_sums(extract(batch.x, batch.mask), batch, num_classes)

    return sum_batches(of_batch, data, data.splits[split], batch_size or forward_batch())


def sum_batches(
    of_batch: Callable[[Batch], PyTree], data: Data, split: Split, batch_size: int
) -> PyTree:
    """Sums a function of batches over a split, in stored order; returns zeros without samples.

    Args:
      of_batch: (batch) -> pytree of arrays; it must ignore masked samples itself.
      data: the data that the split indexes.
      split: the samples.
      batch_size: samples per batch; the last batch is padded and masked.
    """

    def term(i):
        return of_batch(take_batch(data, split.indices, split.count, i * batch_size, batch_size))

    zeros = zeros_of(jax.eval_shape(term, jnp.int32(0)))
    batches = (split.count + batch_size - 1) // batch_size
    return lax.fori_loop(0, batches, lambda i, total: add_trees(total, term(i)), zeros)


def no_class_sums(num_classes: int, width: int) -> ClassSums:
    return ClassSums(jnp.zeros((num_classes, width)), jnp.zeros(num_classes))


def add_trees(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)
