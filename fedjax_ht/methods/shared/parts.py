"""Local training of one part of a client's model, the other being fixed."""

from collections.abc import Callable
from typing import Literal

import jax

from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, features, logits
from fedjax_ht.core.local_training import LocalTraining, Loss, TrainingResult, train
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared.supervised import Regulariser


def train_part(
    training: LocalTraining,
    part: Literal["base", "head"],
    bucket: Bucket,
    client: PyTree,
    data: Data,
    *,
    key: jax.Array,
    regulariser: Regulariser | None = None,
) -> tuple[PyTree, TrainingResult]:
    """Trains a part of a client's model by cross-entropy, as `supervised.train_model` all of it.

    Batch norms normalise by the batch, and keep its statistics, whichever part is trained.

    Args:
      training: local training.
      part: "base", the feature extractor, or "head".
      bucket: the bucket of the client.
      client: a state with the model as "params" and "stats"; other entries stay.
      data: the client's view of the data.
      key: folds into shuffles and dropout.
      regulariser: (features float [B, K], batch) -> scalar added to the loss; None adds nothing.

    Returns:
      The client's new state, and the result of the training.
    """
    fixed = client["params"]

    def put(trained: PyTree) -> PyTree:
        return fixed | {part: trained}

    return train_where(
        training,
        bucket,
        client,
        data,
        key=key,
        trained=fixed[part],
        put=put,
        regulariser=regulariser,
    )


def train_where(
    training: LocalTraining,
    bucket: Bucket,
    client: PyTree,
    data: Data,
    *,
    key: jax.Array,
    trained: PyTree,
    put: Callable[[PyTree], PyTree],
    regulariser: Regulariser | None = None,
    penalty: Callable[[PyTree], jax.Array] | None = None,
) -> tuple[PyTree, TrainingResult]:
    """Trains values from which the parameters of a client's model are made, by cross-entropy.

    Args:
      training, bucket, client, data, key, regulariser: arguments as of `train_part`.
      trained: the values; the optimiser has no state of others.
      put: (the values) -> all parameters {"base", "head"}.
      penalty: (the values) -> scalar added to the loss; None adds nothing.

    Returns:
      The client's new state, and the result of the training, whose parameters are the values.
    """

    def loss(values, stats, batch: Batch, key) -> Loss:
        params = put(values)
        rows, stats = features(bucket, params, stats, batch.x, batch.mask, train=True, key=key)
        value = cross_entropy(logits(bucket, params, rows), batch.y, batch.mask)
        if regulariser is not None:
            value = value + regulariser(rows, batch)
        if penalty is not None:
            value = value + penalty(values)
        return Loss(value, stats)

    result = train(
        training, loss, trained, client["stats"], data, key=key, num_classes=bucket.num_classes
    )
    return client | {"params": put(result.params), "stats": result.stats}, result
