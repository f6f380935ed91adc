"""Local training of one client: epochs or steps over its own samples. One function for every
method.

Trip counts are dynamic: under `vmap` a finished client is masked by the loop itself, alone it stops
early.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.bounds import Count, check_fields
from fedjax_ht.core.method import Data, PyTree, Split

Augment = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(key, normalised images float [B, H, W, C], black: what a black pixel is among them, float [C])
-> images; of inputs that are no images it takes those, and 0.0."""


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """How every client trains.

    Attributes:
      optimizer: made new each round, so that no optimiser state lives between rounds.
      batch_size: samples a step.
      epochs: passes over the client's training samples.
      steps: if set, this number of steps instead of `epochs`. In stored order they go on where
        those of the round before ended, as in DFRD's released code: round t begins with batch t *
        steps, modulo the client's batches. Nothing is kept of a client for it, so that one that was
        not there leaves out what it would have seen.
      shuffle: a new order every epoch; False visits samples in stored order (released code of
        HtFLlib).
      drop_remainder: leave out an epoch's last partial batch, as long as the client fills one batch
        at all; False trains on it, masked.
      augment: applied to every training batch on the device, or None.
      schedule: (round int32, from 0) -> what the optimiser's updates are multiplied by, such as an
        `optax` schedule from 1 on; or None. An optimiser made new each round cannot know the round
        by itself.
    """

    optimizer: optax.GradientTransformation
    batch_size: Count = 10
    epochs: Count = 1
    steps: Count | None = None
    shuffle: bool = True
    drop_remainder: bool = True
    augment: Augment | None = None
    schedule: optax.Schedule | None = None

    def __post_init__(self):
        check_fields(self)
        if not (hasattr(self.optimizer, "init") and hasattr(self.optimizer, "update")):
            raise ValueError(
                f"optimizer is {self.optimizer!r}; it must be an optax optimizer, such as "
                "optax.adam(1e-3)"
            )


class Batch(NamedTuple):
    """x: what a model sees, such as images float32 [B, H, W, C]; y int32 [B]; mask bool [B]: False
    marks padding."""

    x: PyTree
    y: jax.Array
    mask: jax.Array


class Loss(NamedTuple):
    """What a per-batch loss returns: the scalar to descend on, new batch statistics, and rows to
    sum per class."""

    value: jax.Array
    stats: PyTree
    rows: jax.Array | None = None  # float [B, D], or None


class ClassSums(NamedTuple):
    """Sums over samples by class: sums float32 [C, D], counts float32 [C]."""

    sums: jax.Array
    counts: jax.Array


class TrainingResult(NamedTuple):
    """params and stats after training; the mean loss of the steps; per-class sums of `Loss.rows`,
    or None."""

    params: PyTree
    stats: PyTree
    loss: jax.Array
    class_sums: ClassSums | None


LossFn = Callable[[PyTree, PyTree, Batch, jax.Array], Loss]  # (params, stats, batch, key)


def num_steps(training: LocalTraining, num_samples: Any) -> Any:
    """Optimiser steps of one round for a client with `num_samples` samples (an int or an array of
    them)."""
    if training.steps is not None:
        return (num_samples > 0) * training.steps
    return training.epochs * _steps_per_epoch(training, num_samples)


def _steps_per_epoch(training: LocalTraining, count):
    size = training.batch_size
    if training.drop_remainder:  # a client below one batch takes one masked step
        return count // size + ((count > 0) & (count < size)) * 1
    return (count + size - 1) // size


def inputs_at(data: Data, index: jax.Array) -> PyTree:
    """What a model sees of the samples at indices int32 [B]."""
    return data.preprocess(jax.tree.map(lambda x: x[index], data.inputs))


def take_batch(
    data: Data, order: jax.Array, count: jax.Array, start: jax.Array, size: int
) -> Batch:
    """`size` samples of `order` from `start`; positions at or past `count` are masked out."""
    positions = start + jnp.arange(size)
    # Past the end some sample is read, and masked.
    index = order[jnp.minimum(positions, order.shape[0] - 1)]
    return Batch(inputs_at(data, index), data.labels[index], positions < count)


def shuffled(key: jax.Array, split: Split) -> jax.Array:
    """The split's indices in random order, padding last: the same order however long the padding
    is."""
    positions = jnp.arange(split.indices.shape[0])
    bits = jax.random.bits(key, positions.shape) >> 1  # the top bit marks padding
    bits = jnp.where(positions < split.count, bits, jnp.uint32(1 << 31))
    return split.indices[jnp.argsort(bits, stable=True)]


def train(
    training: LocalTraining,
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    data: Data,
    key: jax.Array,
    num_classes: int,
    split: str = "train",
) -> TrainingResult:
    """Trains one client on one of its splits. A client without samples comes back unchanged, with
    loss 0.

    Args:
      training: the recipe; static.
      loss_fn: the method's loss of one batch; it must respect `batch.mask`.
      params: what the optimiser steps; a method may put several models in one pytree.
      stats: batch statistics, carried along and replaced by `Loss.stats`.
      data: the client's view.
      key: folds into the shuffles, the augmentation and the loss.
      num_classes: rows of the class sums.
      split: which of `data.splits` to train on.
    """
    if data.trainer is not None:
        data, trainer = data._replace(trainer=None), data.trainer
        return trainer(training, loss_fn, params, stats, data, key, num_classes, split)
    source = data.splits[split]
    per_epoch = jnp.maximum(_steps_per_epoch(training, source.count), 1)
    shuffle_key, augment_key, loss_key = jax.random.split(key, 3)
    black = getattr(data.preprocess, "black", 0.0)
    start, steps = _first_batch(training, data, per_epoch), num_steps(training, source.count)

    def loss_of(params, stats, batch, key):
        out = loss_fn(params, stats, batch, key)
        return out.value, out

    def step(order, number, state):
        params, opt_state, stats, total, sums = state
        batch = take_batch(
            data, order, source.count, number % per_epoch * training.batch_size, training.batch_size
        )
        if training.augment is not None:
            batch = batch._replace(
                x=training.augment(jax.random.fold_in(augment_key, number), batch.x, black)
            )
        gradients, out = jax.grad(loss_of, has_aux=True)(
            params, stats, batch, jax.random.fold_in(loss_key, number)
        )
        params, opt_state = descend(training, data, gradients, opt_state, params)
        if sums is not None:
            sums = _add(sums, class_sums(out.rows, batch, num_classes))
        return params, opt_state, out.stats, total + out.value, sums

    def epoch(number, state):
        order = _order(training, shuffle_key, number, source)
        first = number * per_epoch
        last = jnp.minimum(first + per_epoch, start + steps)
        return lax.fori_loop(jnp.maximum(first, start), last, lambda i, s: step(order, i, s), state)

    sums = _zero_sums(
        loss_fn, params, stats, data, source, training.batch_size, loss_key, num_classes
    )
    state = (params, training.optimizer.init(params), stats, jnp.float32(0), sums)
    epochs = (start + steps + per_epoch - 1) // per_epoch
    params, _, stats, total, sums = lax.fori_loop(0, epochs, epoch, state)
    return TrainingResult(params, stats, total / jnp.maximum(steps, 1), sums)


def descend(
    training: LocalTraining, data: Data, gradients: PyTree, state: PyTree, params: PyTree
) -> tuple:
    """A step of the recipe's optimiser in `data.round`: the parameters and the optimiser's state
    behind it."""
    updates, state = training.optimizer.update(gradients, state, params)
    if training.schedule is not None:
        factor = training.schedule(0 if isinstance(data.round, tuple) else data.round)
        updates = jax.tree.map(lambda x: x * factor, updates)
    return optax.apply_updates(params, updates), state


def label_counts(
    training: LocalTraining, data: Data, key: jax.Array, num_classes: int, split: str = "train"
) -> jax.Array:
    """The labels that `train` steps on, given the same arguments: int32 [num_classes], repeated
    samples repeatedly."""
    source = data.splits[split]
    per_epoch = jnp.maximum(_steps_per_epoch(training, source.count), 1)
    steps, shuffle_key = num_steps(training, source.count), jax.random.split(key, 3)[0]
    start = _first_batch(training, data, per_epoch)

    def epoch(number, counts):
        order = _order(training, shuffle_key, number, source)
        first = jnp.maximum(start - number * per_epoch, 0) * training.batch_size
        last = jnp.minimum(start + steps - number * per_epoch, per_epoch) * training.batch_size
        position = jnp.arange(order.shape[0])
        seen = (position >= first) & (position < jnp.minimum(last, source.count))
        return counts.at[data.labels[order]].add(seen)

    epochs = (start + steps + per_epoch - 1) // per_epoch
    return lax.fori_loop(0, epochs, epoch, jnp.zeros(num_classes, jnp.int32))


def _first_batch(training: LocalTraining, data: Data, per_epoch: jax.Array) -> jax.Array | int:
    """Which of an epoch's batches a round begins with."""
    if training.shuffle or training.steps is None or isinstance(data.round, tuple):
        return 0
    return data.round * training.steps % per_epoch


def _order(training: LocalTraining, key: jax.Array, epoch: jax.Array, source: Split) -> jax.Array:
    """Indices in the order of one epoch."""
    return shuffled(jax.random.fold_in(key, epoch), source) if training.shuffle else source.indices


def class_sums(rows: jax.Array, batch: Batch, num_classes: int) -> ClassSums:
    """Adds up rows float [B, D] by label, masked samples left out."""
    membership = jax.nn.one_hot(batch.y, num_classes) * batch.mask[:, None]  # [B, C]
    # A padded row may hold anything; zero times NaN would still be NaN.
    return ClassSums(membership.T @ jnp.where(batch.mask[:, None], rows, 0), membership.sum(0))


def class_means(sums: ClassSums) -> jax.Array:
    """float32 [C, D]; zero where a class has no sample."""
    return sums.sums / jnp.maximum(sums.counts, 1)[:, None]


def forward_batch() -> int:
    """Samples of a forward pass whose result does not depend on it: on CPU so few that what a layer
    makes of them stays in the cache."""
    return 16 if jax.default_backend() == "cpu" else 64


def sum_by_class(
    extract: Callable[[jax.Array, jax.Array], jax.Array],
    data: Data,
    num_classes: int,
    batch_size: int | None = None,
    split: str = "train",
) -> ClassSums:
    """One pass over a split, in stored order, that sums `extract(x, mask) [B, D]` by class: how
    prototypes are made."""
    source, batch_size = data.splits[split], batch_size or forward_batch()

    def rows(i):
        batch = take_batch(data, source.indices, source.count, i * batch_size, batch_size)
        return extract(batch.x, batch.mask), batch

    def body(i, sums):
        return _add(sums, class_sums(*rows(i), num_classes))

    width = jax.eval_shape(rows, jnp.int32(0))[0].shape[-1]
    batches = (source.count + batch_size - 1) // batch_size
    return lax.fori_loop(
        0, batches, body, ClassSums(jnp.zeros((num_classes, width)), jnp.zeros(num_classes))
    )


def _add(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


def _zero_sums(
    loss_fn, params, stats, data, source, batch_size, key, num_classes
) -> ClassSums | None:
    def rows():
        batch = take_batch(data, source.indices, source.count, jnp.int32(0), batch_size)
        return loss_fn(params, stats, batch, key).rows

    shape = jax.eval_shape(rows)
    return (
        None
        if shape is None
        else ClassSums(jnp.zeros((num_classes, shape.shape[-1])), jnp.zeros(num_classes))
    )
