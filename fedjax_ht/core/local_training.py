"""Local training of one client: one function for all methods, over epochs or steps.

Trip counts are dynamic: under `vmap` the loop masks finished clients; without it, it stops early.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Float, Int, Key, Num

from fedjax_ht.check.names import kind_of_value
from fedjax_ht.check.options import Count, check_fields, named_options
from fedjax_ht.core.batches import (
    Batch,
    ClassSums,
    add_trees,
    class_sums,
    no_class_sums,
    shuffled,
    take_batch,
)
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree

Augment = Callable[[Key[Array, ""], PyTree, Float[Array, " C"] | float], PyTree]
"""(key, normalised images float [B, H, W, C], value of a black pixel float [C]) -> images.

If the inputs are not images, the third argument is 0.0.
"""


@named_options
@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """The training recipe of every client.

    Attributes:
      optimizer: the optimiser; its state is reset in each round.
      batch_size: samples per step.
      epochs: passes over the client's training samples in a round.
      steps: number of steps in a round instead of `epochs`; None uses `epochs`. In stored order
        they continue from the previous round, as in DFRD's released code: the first batch of round
        t is t * steps, modulo the client's batches. No state is kept for this, so an absent client
        skips the batches of that round.
      shuffle: True draws a new order in every epoch; False uses stored order (released code of
        HtFLlib).
      drop_remainder: True skips an epoch's last partial batch, if the client has a full batch;
        False trains on it, masked.
      augmentation: a function that augments every training batch on the device, or None.
      schedule: (round int32, from 0) -> factor on the optimiser's updates, such as an `optax`
        schedule that starts at 1; None is 1. An optimiser that is reset in each round does not know
        the round.

    Raises:
      ValueError: a field is out of its bounds. One line.

    Example:
      >>> fl.LocalTraining(optax.adam(1e-3), batch_size=32, epochs=5).epochs
      5
      >>> fl.LocalTraining(optax.sgd(0.1), batch_size=0)
      Traceback (most recent call last):
      ...
      ValueError: batch_size is 0; it must be an integer of at least 1
    """

    optimizer: optax.GradientTransformation
    batch_size: Count = 10
    epochs: Count = 1
    steps: Count | None = None
    shuffle: bool = True
    drop_remainder: bool = True
    augmentation: Augment | None = None
    schedule: optax.Schedule | None = None

    def __post_init__(self):
        check_fields(self)
        require_optimizer(self.optimizer)
        try:
            trial_step(self.optimizer)
        except TypeError as error:
            if "required keyword-only argument" in str(error):
                raise ValueError(
                    f"optimizer needs {str(error).rpartition(': ')[2]} in each step, but clients "
                    "only provide gradients; choose another, such as optax.adam(1e-3)"
                ) from None
        except Exception:  # an optimiser may need parameters of another form, such as named parts
            return


def require_optimizer(optimizer: Any) -> None:
    """Raises ValueError, of one line, for anything but an optax optimizer."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        found = kind_of_value(optimizer)  # the repr of a torch optimiser has many lines
        raise ValueError(
            f"optimizer is {found}; it must be an optax optimizer, such as optax.adam(1e-3)"
        )


def trial_step(optimizer: optax.GradientTransformation) -> None:
    """Traces a step of one weight: some optax optimisers need more than gradients."""

    def step():
        weight = jnp.zeros(1)  # inside the trace: elsewhere, an array would claim the devices
        return optimizer.update(weight, optimizer.init(weight), weight)

    jax.eval_shape(step)


class Loss(NamedTuple):
    """The result of the loss function on one batch.

    Attributes:
      value: the scalar to descend on.
      stats: the new batch statistics.
      rows: float [B, D] to sum by class, such as features; None for no sums.
    """

    value: Float[Array, ""]
    stats: PyTree
    rows: Float[Array, "B D"] | None = None


class TrainingResult(NamedTuple):
    """The result of a client's training.

    Attributes:
      params, stats: parameters and batch statistics after training.
      loss: float32 scalar, the mean loss of the steps.
      class_sums: sums of `Loss.rows` by class; None without rows.
    """

    params: PyTree
    stats: PyTree
    loss: Float[Array, ""]
    class_sums: ClassSums | None


BATCH_OF = "batch_of_{}"
"""Scope in which a training step reads its batch; `metrics.flops` finds its samples by it."""

Counts = Num[HostNumber, "..."] | int
"""Numbers of samples or steps, of one client or several."""

LossFn = Callable[[PyTree, PyTree, Batch, Key[Array, ""]], Loss]  # (params, stats, batch, key)


def num_steps(training: LocalTraining, num_samples: Counts) -> Counts:
    """Counts the optimiser steps of one round.

    Args:
      training: the recipe.
      num_samples: the client's number of training samples, or an array of numbers.
    """
    if training.steps is not None:
        return (num_samples > 0) * training.steps
    return training.epochs * _steps_per_epoch(training, num_samples)


def _steps_per_epoch(training: LocalTraining, count: Counts) -> Counts:
    size = training.batch_size
    if training.drop_remainder:  # a client with less than one batch takes one masked step
        return count // size + ((count > 0) & (count < size)) * 1
    return (count + size - 1) // size


def train(
    training: LocalTraining,
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    data: Data,
    *,
    key: Key[Array, ""],
    num_classes: int = 0,
    split: str = "train",
    epochs: Counts | None = None,
) -> TrainingResult:
    """Trains one client on one of its splits.

    Args:
      training: the recipe; static.
      loss_fn: (params, stats, batch, key) -> Loss, the method's loss of one batch; it must respect
        `batch.mask`.
      params: the parameters to train; a method may put several models in one pytree.
      stats: batch statistics, replaced by `Loss.stats` in each step.
      data: the client's view of the data.
      key: the key of the shuffles, the augmentation and the loss.
      num_classes: rows of the class sums, for a loss with `Loss.rows`.
      split: key of `data.splits`.
      epochs: passes over the split, may be traced; None uses the recipe's.

    Returns:
      The result; without samples, params and stats are unchanged and the loss is 0.

    Example:
      >>> x, labels = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([0, 1, 0])
      >>> split, key = fl.Split(indices=jnp.arange(3), count=jnp.int32(3)), jax.random.key(0)
      >>> data = fl.Data(x, labels, preprocess=lambda x: x, splits={"train": split})
      >>> def loss(w, stats, batch, key):
      ...     error = (batch.x[:, 0] * w - 2 * batch.x[:, 0]) ** 2
      ...     return fl.Loss(fl.losses.masked_mean(error, batch.mask), stats)
      >>> recipe = fl.LocalTraining(optax.sgd(0.05), batch_size=3, epochs=20)
      >>> result = fl.train(recipe, loss, jnp.float32(0), (), data, key=key)
      >>> round(float(result.params), 3)
      2.0
    """
    source, size = data.splits[split], training.batch_size
    sums = _zero_sums(loss_fn, params, stats, data, source, size, key, num_classes)
    if data.trainer is not None:
        data, trainer = data._replace(trainer=None), data.trainer
        return trainer(training, loss_fn, params, stats, data, key, num_classes, split)
    per_epoch = jnp.maximum(_steps_per_epoch(training, source.count), 1)
    shuffle_key, _, loss_key = jax.random.split(key, 3)
    # Methods take `fold_in(key, 1)`, which is the second of these, for a phase of their own.
    augment_key = jax.random.fold_in(key, 3)
    black = getattr(data.preprocess, "black", 0.0)
    start, steps = _first_batch(training, data, per_epoch), num_steps(training, source.count)
    if epochs is not None:
        start, steps = 0, epochs * _steps_per_epoch(training, source.count)

    def loss_of(params, stats, batch, key):
        out = loss_fn(params, stats, batch, key)
        return out.value, out

    def step(order, number, state):
        params, opt_state, stats, total, sums = state
        first = number % per_epoch * size
        with jax.named_scope(BATCH_OF.format(size)):
            batch = take_batch(data, order, source.count, first, size)
        if training.augmentation is not None:
            view_key = jax.random.fold_in(augment_key, number)
            batch = augmented(training.augmentation, batch, black, key=view_key)
        step_key = jax.random.fold_in(loss_key, number)
        gradients, out = jax.grad(loss_of, has_aux=True)(params, stats, batch, step_key)
        params, opt_state = descend(training, data, gradients, opt_state, params)
        if sums is not None:
            sums = add_trees(sums, class_sums(out.rows, batch, num_classes))
        return params, opt_state, out.stats, total + out.value.astype(jnp.float32), sums

    def epoch(number, state):
        # Nested loops, so that an order is drawn once per epoch and not once per step.
        order = _order(training, shuffle_key, number, source)
        first = number * per_epoch
        last = jnp.minimum(first + per_epoch, start + steps)
        return lax.fori_loop(jnp.maximum(first, start), last, lambda i, s: step(order, i, s), state)

    state = (params, training.optimizer.init(params), stats, jnp.float32(0), sums)
    passes = (start + steps + per_epoch - 1) // per_epoch
    params, _, stats, total, sums = lax.fori_loop(0, passes, epoch, state)
    return TrainingResult(params, stats, total / jnp.maximum(steps, 1), sums)


def no_training(
    training, loss_fn: LossFn, params, stats, data: Data, key, num_classes, split: str = "train"
) -> TrainingResult:
    """A `Data.trainer` for clients without samples, which leaves no loop in the program.

    Arguments and result are as for `train`.
    """
    size = training.batch_size
    sums = _zero_sums(loss_fn, params, stats, data, data.splits[split], size, key, num_classes)
    return TrainingResult(params, stats, jnp.float32(0), sums)


def augmented(
    augmentation: Augment,
    batch: Batch,
    black: Float[Array, " C"] | float,
    *,
    key: Key[Array, ""],
) -> Batch:
    """Returns a batch as an augmentation changes it; see `Augment` for `black`.

    Raises:
      ValueError: the augmentation changes the shape of inputs. One line.
    """
    x = augmentation(key, batch.x, black)
    before, after = jax.tree.map(jnp.shape, (batch.x, x))
    if before != after:
        raise ValueError(f"the augmentation returns {after} for {before}; it must keep the shape")
    return batch._replace(x=x)


def descend(
    training: LocalTraining, data: Data, gradients: PyTree, state: PyTree, params: PyTree
) -> tuple:
    """Takes an optimiser step in round `data.round`; returns new parameters and optimiser state."""
    updates, state = training.optimizer.update(gradients, state, params)
    if training.schedule is not None:
        factor = training.schedule(0 if data.round is None else data.round)
        updates = jax.tree.map(lambda x: x * factor, updates)
    return optax.apply_updates(params, updates), state


def label_counts(
    training: LocalTraining, data: Data, key: Key[Array, ""], num_classes: int
) -> Int[Array, " C"]:
    """Counts the labels that `train` sees, given the same arguments.

    Returns:
      int32 [num_classes]; a sample counts once per step that uses it.
    """
    source = data.splits["train"]
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


def _first_batch(
    training: LocalTraining, data: Data, per_epoch: Int[Array, ""]
) -> Int[HostNumber, ""] | int:
    """Returns the index of a round's first batch within an epoch."""
    if training.shuffle or training.steps is None or data.round is None:
        return 0
    return data.round * training.steps % per_epoch


def _order(
    training: LocalTraining, key: Key[Array, ""], epoch: Int[Array, ""] | int, source: Split
) -> Int[HostArray, " samples"]:
    """Returns the split's indices in the order of one epoch."""
    return shuffled(jax.random.fold_in(key, epoch), source) if training.shuffle else source.indices


def _zero_sums(
    loss_fn, params, stats, data, source, batch_size, key, num_classes
) -> ClassSums | None:
    """Returns the class sums before the first step; None if the loss returns no rows.

    Raises:
      ValueError: the loss does not return a `Loss` with a scalar and the given statistics' form, or
        returns rows without `num_classes`. One line.
    """

    def rows():
        batch = take_batch(data, source.indices, source.count, jnp.int32(0), batch_size)
        loss = loss_fn(params, stats, batch, key)
        if not isinstance(loss, Loss):
            raise ValueError(
                f"the loss function returns a {type(loss).__name__}; return fl.Loss(value, stats)"
            )
        if jax.tree.structure(loss.stats) != jax.tree.structure(stats):
            raise ValueError(
                "the loss function returns statistics of another structure than it is given; "
                "return fl.Loss(value, stats)"
            )
        if jnp.shape(loss.value):
            raise ValueError(
                f"the loss function returns a value of shape {jnp.shape(loss.value)}; return a "
                "scalar, such as fl.losses.masked_mean(value, batch.mask)"
            )
        return loss.rows

    form = jax.eval_shape(rows)
    if form is not None and num_classes < 1:
        raise ValueError("the loss returns rows to sum by class; give train num_classes")
    return None if form is None else no_class_sums(num_classes, form.shape[-1])
