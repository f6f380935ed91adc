"""Local training of a client's model by its task's loss, which most methods share."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.core.batches import Batch, forward_batch, sum_batches
from fedjax_ht.core.bucket import Bucket, features, head_scores, logits
from fedjax_ht.core.context import Context
from fedjax_ht.core.local_training import LocalTraining, Loss, LossFn, TrainingResult, train
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree

# (features [B, K], batch) -> scalar added to the task's loss
Regulariser = Callable[[jax.Array, Batch], jax.Array]


def count_labels(data: Data, num_classes: int) -> jax.Array:
    """Counts a client's training samples by class, int32 [C]."""
    indices, count = data.splits["train"]
    # Padding is read like samples, and adds 0.
    real = jnp.arange(indices.shape[0]) < count
    return jnp.zeros(num_classes, jnp.int32).at[data.labels[indices]].add(real)


def own_classes(data: Data, num_classes: int) -> jax.Array:
    """Marks the classes of a client's training samples, bool [num_classes]."""
    return count_labels(data, num_classes) > 0


def batch_features(
    bucket: Bucket, params: PyTree, stats: PyTree, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, PyTree]:
    """Runs the feature extractor on a training batch, see `core.bucket.features`."""
    return features(bucket, params, stats, batch.x, batch.mask, train=True, key=key)


def batch_loss(
    bucket: Bucket, params: PyTree, stats: PyTree, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, PyTree]:
    """Computes the task's loss of a training batch, and the new batch statistics."""
    rows, stats = batch_features(bucket, params, stats, batch, key)
    return bucket.task.loss(logits(bucket, params, rows), batch.y, batch.mask), stats


def train_client(
    training: LocalTraining,
    loss: LossFn,
    bucket: Bucket,
    client: PyTree,
    data: Data,
    key: jax.Array,
) -> tuple[PyTree, TrainingResult]:
    """Trains a client's model on a method's own loss; arguments as for `local_training.train`.

    Returns:
      The client with new "params" and "stats", and the result of the training.
    """
    params, stats = client["params"], client["stats"]
    result = train(training, loss, params, stats, data, key=key, num_classes=bucket.num_classes)
    return client | {"params": result.params, "stats": result.stats}, result


def train_beside(
    training: LocalTraining, loss: LossFn, name: str, client: PyTree, data: Data, key: jax.Array
) -> tuple[PyTree, TrainingResult]:
    """Trains a client's model together with another entry of its state.

    Args:
      training: the recipe of local training.
      loss: the loss of a batch, for parameters {"model", name}.
      name: the entry.
      client, data, key: as for `train_client`.

    Returns:
      The client with new "params", "stats" and entry, and the result of the training.
    """
    params = {"model": client["params"], name: client[name]}
    result = train(training, loss, params, client["stats"], data, key=key)
    new = {"params": result.params["model"], "stats": result.stats, name: result.params[name]}
    return client | new, result


def train_model(
    training: LocalTraining,
    bucket: Bucket,
    client: PyTree,
    data: Data,
    ctx: Context,
    *,
    part: Literal["base", "head"] | None = None,
    trained: PyTree = None,
    put: Callable[[PyTree], PyTree] | None = None,
    split: str = "train",
    regulariser: Regulariser | None = None,
    penalty: Callable[[PyTree], jax.Array] | None = None,
    gather_features: bool = False,
    classes: jax.Array | None = None,
) -> tuple[PyTree, TrainingResult]:
    """Trains a client's model on its task's loss, with optional terms of features and parameters.

    Batch norms normalise by the batch and update their statistics, whichever part is trained.

    Args:
      training: the recipe of local training.
      bucket: the bucket of the client.
      client: the client's state, with the model as "params" and "stats"; other entries stay.
      data, ctx: the client's data and its context, as for `client_update`. A second training in a
        round needs another key, `ctx._replace(key=jax.random.fold_in(ctx.key, 1))`.
      part: "base" to train the feature extractor alone, "head" for the head alone; None for both.
      trained: other values to train, from which `put` makes the parameters; the optimiser's state
        covers these alone. None trains the parameters themselves, or a part of them.
      put: (the trained values) -> all parameters {"base", "head"}; None without `trained`.
      split: the samples to train on, a key of `data.splits`.
      regulariser: (features float [B, K], batch) -> scalar added to the loss; None for none.
      penalty: (the trained values) -> scalar added to the loss; None for none.
      gather_features: True sums the features of the training by class.
      classes: bool [num_classes]; the logits of other classes are 0 in the loss. None for all
        classes.

    Returns:
      The client's new state, and the result of the training, with the trained values and, if
      `gather_features`, class sums of the features.
    """
    if (put is None) != (trained is None) or not (put is None or part is None):
        raise ValueError("train_model takes trained and put together, and no part beside them")
    params = client["params"]
    if put is None:
        trained = params if part is None else params[part]

    def make(values: PyTree) -> PyTree:
        if put is not None:
            return put(values)
        return values if part is None else params | {part: values}

    def loss(values, stats, batch: Batch, key) -> Loss:
        params = make(values)
        rows, stats = batch_features(bucket, params, stats, batch, key)
        scores = logits(bucket, params, rows)
        if classes is not None:
            scores = jnp.where(classes, scores, 0)
        value = bucket.task.loss(scores, batch.y, batch.mask)
        if regulariser is not None:
            value = value + regulariser(rows, batch)
        if penalty is not None:
            value = value + penalty(values)
        return Loss(value, stats, rows if gather_features else None)

    result = train(
        training,
        loss,
        trained,
        client["stats"],
        data,
        key=ctx.key,
        num_classes=bucket.num_classes,
        split=split,
    )
    return client | {"params": make(result.params), "stats": result.stats}, result


def own_loss(bucket: Bucket, client: PyTree, data: Data) -> jax.Array:
    """Computes a client's mean training loss in evaluation mode; 0 without samples."""

    def of_batch(batch: Batch) -> jax.Array:
        scores = head_scores(bucket, client, batch.x, batch.mask)
        return bucket.task.loss(scores, batch.y, batch.mask) * batch.mask.sum()

    source = data.splits["train"]
    total = sum_batches(of_batch, data, source, forward_batch())
    return total / jnp.maximum(source.count, 1)
