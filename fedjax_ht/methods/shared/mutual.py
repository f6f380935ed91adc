"""Mutual learning: a client's private model and its copy of a shared one, trained side by side.

Both see the same batches; the server averages the copies. A client's state is {"params", "stats",
"shared": {"params", "stats"}}, plus entries of the method.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import optax

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, logits
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss, LossFn, TrainingResult, train
from fedjax_ht.core.samples import Data
from fedjax_ht.core.task import Task
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.averaging import client_weights, mean_or
from fedjax_ht.methods.shared.supervised import batch_features


class Outputs(NamedTuple):
    """One model's features float [B, K] and logits float [B, num_classes] of a batch."""

    features: jax.Array
    logits: jax.Array


# (task, private model's outputs, shared model's outputs, batch, further parameters) -> (private
# model's loss, shared model's loss)
PairLoss = Callable[[Task, Outputs, Outputs, Batch, PyTree], tuple[jax.Array, jax.Array]]


def init_pair(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises a client's private model and its copy of the shared one."""
    shared = init_variables(bucket.auxiliary, jax.random.fold_in(ctx.key, 1))
    return init_variables(bucket, ctx.key) | {"shared": shared}


def take_shared(client: PyTree, **new: PyTree) -> PyTree:
    """Replaces "params" or "stats" in a client's copy of the shared model."""
    return client | {"shared": client["shared"] | new}


def receive_shared(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Copies the server's parameters into a client's shared model; a `Method.receive`."""
    return take_shared(client, params=downlink)


def by_part(
    optimizers: Mapping[str, optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Runs a separate optimizer for each entry of a dict of parameters."""

    def init(params):
        return {name: optimizers[name].init(part) for name, part in params.items()}

    def update(updates: PyTree, state: PyTree, params: PyTree = None):
        new, states = {}, {}
        for name, gradient in updates.items():
            optimizer = optimizers[name]
            new[name], states[name] = optimizer.update(gradient, state[name], params[name])
        return new, states

    return optax.GradientTransformation(init, update)


def in_parts(
    training: LocalTraining, optimizers: Mapping[str, optax.GradientTransformation]
) -> LocalTraining:
    """Returns the recipe with one optimizer for each trained part, see `by_part`."""
    return dataclasses.replace(training, optimizer=by_part(optimizers))


def train_parts(
    training: LocalTraining,
    loss: LossFn,
    client: PyTree,
    beside: PyTree,
    *,
    data: Data,
    key: jax.Array,
    optimizers: Mapping[str, optax.GradientTransformation],
) -> tuple[PyTree, PyTree, TrainingResult]:
    """Trains both models of a client, or parts of them, and further parameters on one loss.

    Args:
      training: the recipe of local training.
      loss: the loss of a batch, for the trained parts and stats {"own", "shared"}.
      client: a state as `init_pair` makes it.
      beside: further parts by name, which are not of the state.
      data, key: as for `local_training.train`.
      optimizers: "own", "shared" or a further name -> the optimizer of that part; a part without
        one is not trained.

    Returns:
      The client's new state, the new further parts, and the result of the training.
    """
    # These names set the order of the leaves, and with it the keys of DP-SGD's noise.
    parts = {"own": client["params"], "shared": client["shared"]["params"]} | beside
    stats = {"own": client["stats"], "shared": client["shared"]["stats"]}
    trained = {name: parts[name] for name in optimizers}
    result = train(in_parts(training, optimizers), loss, trained, stats, data, key=key)
    params, stats = parts | result.params, result.stats
    client = take_shared(client, params=params["shared"], stats=stats["shared"])
    client = client | {"params": params["own"], "stats": stats["own"]}
    return client, {name: params[name] for name in beside}, result


def pair_training(
    training: LocalTraining, losses: PairLoss, *, joint: bool = False
) -> Callable[..., tuple[PyTree, PyTree, TrainingResult]]:
    """Makes the training of both models of a client.

    The private model's batches and dropout are those of `supervised.train_model`.

    Args:
      training: the recipe of local training; its optimizer runs separately for each model.
      losses: the two losses of one batch.
      joint: False trains each model on its own loss, with the other model's outputs as constants;
        True trains both on the sum.

    Returns:
      (bucket, client, data, ctx, extra=()) -> (client, extra, result): the client's state is as
      `init_pair` makes it, the bucket holds both modules, data and ctx are as for `client_update`,
      and `extra` are further parameters, trained on the sum of both losses. The result's loss is
      the mean of the sum of both losses.
    """
    # An optimizer clips the gradient norm of one model, not of both.
    optimizers = {name: training.optimizer for name in ("own", "shared", "beside")}

    def train_pair(bucket: Bucket, client: PyTree, data: Data, ctx: Context, extra: PyTree = ()):
        beside, task = bucket.auxiliary, bucket.task

        def outputs(part: Bucket, params, stats, batch: Batch, key):
            rows, stats = batch_features(part, params, stats, batch, key)
            return Outputs(rows, logits(part, params, rows)), stats

        def as_teacher(outputs: Outputs) -> Outputs:
            return outputs if joint else jax.lax.stop_gradient(outputs)

        def loss(params, stats, batch: Batch, key) -> Loss:
            private, private_stats = outputs(bucket, params["own"], stats["own"], batch, key)
            key = jax.random.fold_in(key, 1)
            shared, shared_stats = outputs(beside, params["shared"], stats["shared"], batch, key)
            private_loss, _ = losses(task, private, as_teacher(shared), batch, params["beside"])
            _, shared_loss = losses(task, as_teacher(private), shared, batch, params["beside"])
            return Loss(private_loss + shared_loss, {"own": private_stats, "shared": shared_stats})

        client, extras, result = train_parts(
            training, loss, client, {"beside": extra}, data=data, key=ctx.key, optimizers=optimizers
        )
        return client, extras["beside"], result

    return train_pair


def average_copies(
    federation: Federation, server: PyTree, received: dict[str, Received], ctx: Context
) -> tuple[PyTree, Metrics]:
    """Averages the copies uniformly; a `Method.server_update`.

    The server keeps its parameters if no client with samples arrived.
    """
    joined = gather_received(received)
    return mean_or(server, joined.uplink, client_weights(joined)), {}
