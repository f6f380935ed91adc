"""A client's personal model and its copy of the server's model, trained on the same batches.

Both have the same architecture. A client's state is {"params", "stats", "shared": {"params",
"stats"}}, plus entries of the method; the first two belong to the personal model.
"""

from collections.abc import Callable, Mapping

import jax
import optax

from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.context import Context
from fedjax_ht.core.local_training import LocalTraining, Loss, TrainingResult
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared.mutual import take_shared, train_parts
from fedjax_ht.methods.shared.supervised import batch_loss

# ({"own", "shared", "beside"}: trained parameters) -> the personal model's parameters
Personal = Callable[[PyTree], PyTree]


def init_both(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises both models with equal values, which `receive_both` replaces."""
    model = init_variables(bucket, ctx.key)
    return model | {"shared": model}


def receive_both(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Takes the server's model; the first one received also initialises the personal model."""
    client = take_shared(client, params=downlink)
    return begin_as_received(bucket, client, downlink, data, ctx)


def begin_as_received(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Initialises a client's model with the first model received; a `Method.receive`."""
    assert ctx.info is not None  # the context is a client's
    first = ctx.info.last_round < 0
    return client | {"params": select(first, downlink, client["params"])}


def training_both(
    training: LocalTraining,
    optimizers: Mapping[str, optax.GradientTransformation],
    personal: Personal,
) -> Callable[..., tuple[PyTree, PyTree, TrainingResult]]:
    """Makes the training of both models separately on the task's loss.

    The copy of the server's model is trained as `supervised.train_model` would.

    Args:
      training: local training.
      optimizers: "own", "shared" and "beside" -> the optimizer of that part.
      personal: (trained parameters) -> the personal model's; "shared" is a constant there.

    Returns:
      (bucket, client, data, ctx, beside=()) -> (client, beside, result): the client's state is as
      `init_both` makes it, data and ctx are as for `client_update`, and `beside` are further
      parameters, trained on the personal model's loss. The result's loss is the sum of both.
    """

    def train_both(bucket: Bucket, client: PyTree, data: Data, ctx: Context, beside: PyTree = ()):
        def loss(params, stats, batch: Batch, key) -> Loss:
            shared, shared_stats = batch_loss(bucket, params["shared"], stats["shared"], batch, key)
            mixed = personal(params | {"shared": jax.lax.stop_gradient(params["shared"])})
            key = jax.random.fold_in(key, 1)
            private, stats = batch_loss(bucket, mixed, stats["own"], batch, key)
            return Loss(private + shared, {"own": stats, "shared": shared_stats})

        parts = {"beside": beside}
        client, parts, result = train_parts(
            training, loss, client, parts, data=data, key=ctx.key, optimizers=optimizers
        )
        return client, parts["beside"], result

    return train_both
