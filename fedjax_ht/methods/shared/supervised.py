"""Local training of a client's own model by cross-entropy, which most methods share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_ht.core.federation import Bucket, features, logits
from fedjax_ht.core.local_training import Batch, LocalTraining, Loss, TrainingResult, train
from fedjax_ht.core.method import Context, Data, PyTree
from fedjax_ht.losses import cross_entropy

# (features [B, K], batch) -> scalar added to the cross-entropy
Regulariser = Callable[[jax.Array, Batch], jax.Array]


def count_labels(data: Data, num_classes: int) -> jax.Array:
    """Training samples by class, int32 [C]."""
    indices, count = data.splits["train"]
    real = jnp.arange(indices.shape[0]) < count
    return jnp.zeros(num_classes, jnp.int32).at[data.labels[indices]].add(real)


def own_classes(data: Data, num_classes: int) -> jax.Array:
    """bool [num_classes]: which classes the client has training samples of."""
    return count_labels(data, num_classes) > 0


def train_model(
    training: LocalTraining,
    bucket: Bucket,
    client: PyTree,
    data: Data,
    ctx: Context,
    regulariser: Regulariser | None = None,
    gather_features: bool = False,
    classes: jax.Array | None = None,
) -> tuple[PyTree, TrainingResult]:
    """Trains the client's whole model by cross-entropy, plus a regulariser of its features where
    there is one.

    Args:
      training, bucket, client, data, ctx: of the client.
      regulariser: or None.
      gather_features: sum the features seen by class.
      classes: bool [num_classes]; the logits of other classes count as 0 in the loss. None takes
        them as they are.

    Returns:
      The client's new state, and the result, with per-class sums of the features seen if
      `gather_features`.
    """

    def loss(params, stats, batch: Batch, key) -> Loss:
        representations, stats = features(
            bucket, params, stats, batch.x, batch.mask, train=True, key=key
        )
        scores = logits(bucket, params, representations)
        scores = scores if classes is None else jnp.where(classes, scores, 0)
        value = cross_entropy(scores, batch.y, batch.mask)
        if regulariser is not None:
            value = value + regulariser(representations, batch)
        return Loss(value, stats, representations if gather_features else None)

    result = train(
        training, loss, client["params"], client["stats"], data, ctx.key, bucket.num_classes
    )
    return client | {"params": result.params, "stats": result.stats}, result
