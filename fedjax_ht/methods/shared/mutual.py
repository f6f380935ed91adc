"""What the methods with an auxiliary model share: a client's own model and its copy of the shared
one, trained side by side on the same batches ("mutual learning"), and the server's mean of the
copies.

A client is {"params", "stats", "shared": {"params", "stats"}}, plus what the method adds.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import optax

from fedjax_ht.core.federation import Bucket, features, init_variables, logits
from fedjax_ht.core.local_training import Batch, LocalTraining, Loss, TrainingResult, train
from fedjax_ht.core.method import Context, Data, PyTree, Received
from fedjax_ht.core.round import select
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean


class Outputs(NamedTuple):
    """One model's features float [B, K] and logits float [B, num_classes] of a batch."""

    features: jax.Array
    logits: jax.Array


# (own model's outputs, shared model's, batch, what is trained beside the two) -> (own model's loss,
# shared model's)
PairLoss = Callable[[Outputs, Outputs, Batch, PyTree], tuple[jax.Array, jax.Array]]


def init_pair(bucket: Bucket, ctx: Context) -> PyTree:
    """A client with its own model as every method initialises it, and a copy of the shared one."""
    return init_variables(bucket, ctx.key) | {
        "shared": init_variables(bucket.shared, jax.random.fold_in(ctx.key, 1))
    }


def take_shared(client: PyTree, **new: PyTree) -> PyTree:
    """The client with these "params" or "stats" in its copy of the shared model; the rest stays."""
    return client | {"shared": client["shared"] | new}


def separately(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer for each entry of a dict of models by itself, so that a norm it clips is one
    network's."""

    def init(params):
        return {name: optimizer.init(model) for name, model in params.items()}

    def update(gradients, state, params):
        both = {
            name: optimizer.update(gradients[name], state[name], params[name]) for name in gradients
        }
        return {name: updates for name, (updates, _) in both.items()}, {
            name: new for name, (_, new) in both.items()
        }

    return optax.GradientTransformation(init, update)


def train_pair(
    training: LocalTraining,
    bucket: Bucket,
    client: PyTree,
    data: Data,
    ctx: Context,
    losses: PairLoss,
    beside: PyTree = (),
    joint: bool = False,
) -> tuple[PyTree, PyTree, TrainingResult]:
    """Trains both models of a client; batches and dropout of its own are those of
    `supervised.train_model`.

    Args:
      training: local training; its optimizer runs for each model by itself.
      bucket: whose modules.
      client: what `init_pair` makes.
      data, ctx: of the client's round.
      losses: of one batch.
      beside: what else is trained, by the sum of both losses.
      joint: False lets each model descend on its own loss alone, the other model's outputs being
        constants there; True lets each descend on the sum.

    Returns:
      The client, `beside` as trained, and the result, its loss the mean of the sum of both losses.
    """

    def outputs(part: Bucket, params, stats, batch: Batch, key):
        seen, stats = features(part, params, stats, batch.x, batch.mask, train=True, key=key)
        return Outputs(seen, logits(part, params, seen)), stats

    def loss(params, stats, batch: Batch, key) -> Loss:
        own, own_stats = outputs(bucket, params["own"], stats["own"], batch, key)
        key = jax.random.fold_in(key, 1)
        shared, shared_stats = outputs(bucket.shared, params["shared"], stats["shared"], batch, key)
        constant = (lambda x: x) if joint else jax.lax.stop_gradient
        own_loss, _ = losses(own, constant(shared), batch, params["beside"])
        _, shared_loss = losses(constant(own), shared, batch, params["beside"])
        return Loss(own_loss + shared_loss, {"own": own_stats, "shared": shared_stats})

    params = {"own": client["params"], "shared": client["shared"]["params"], "beside": beside}
    stats = {"own": client["stats"], "shared": client["shared"]["stats"]}
    training = dataclasses.replace(training, optimizer=separately(training.optimizer))
    result = train(training, loss, params, stats, data, ctx.key, bucket.num_classes)
    params, stats = result.params, result.stats
    client = client | {"params": params["own"], "stats": stats["own"]}
    client = take_shared(client, params=params["shared"], stats=stats["shared"])
    return client, params["beside"], result


def mean_of_copies(copies: PyTree, received: Received, server: PyTree) -> tuple[PyTree, jax.Array]:
    """The uniform mean over the clients that arrived and have samples.

    Args:
      copies: stacked over the participants [P].
      received: ordered by `gather_received`.
      server: of the copies' structure.

    Returns:
      The mean, or `server` where no such client arrived; and whether any did.
    """
    weights = client_weights(received)
    return select(weights.any(), weighted_mean(copies, weights), server), weights.any()
