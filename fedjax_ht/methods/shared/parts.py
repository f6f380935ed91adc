"""Local training of one part of a client's model, the other being fixed."""

from typing import Literal

import jax

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.local_training import LocalTraining, TrainingResult
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.supervised import Regulariser, train_where


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
