"""Local training of one part of a client's model, the other being fixed."""

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

    def loss(params, stats, batch: Batch, key) -> Loss:
        model = fixed | {part: params}
        rows, stats = features(bucket, model, stats, batch.x, batch.mask, train=True, key=key)
        value = cross_entropy(logits(bucket, model, rows), batch.y, batch.mask)
        if regulariser is not None:
            value = value + regulariser(rows, batch)
        return Loss(value, stats)

    result = train(
        training, loss, fixed[part], client["stats"], data, key=key, num_classes=bucket.num_classes
    )
    return client | {"params": fixed | {part: result.params}, "stats": result.stats}, result
