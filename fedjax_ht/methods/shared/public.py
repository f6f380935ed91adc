"""Distillation on a public set: a round's samples, clients' outputs, and the server's targets.

A downlink concerns the samples of two rounds: targets for those requested in the last round, and
positions of those requested now. The server repeats the draw from the round's shared key, so that
uploads need not name their samples.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import forward_batch, take_batch
from fedjax_ht.core.bucket import Bucket, head_scores, logits
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import ClientUpdate
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.trees import Array, PyTree, select
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, dense
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.methods.shared.supervised import batch_features, train_client, train_model

# (logits float [B, C], targets float [B, C], mask bool [B]) -> scalar
Distance = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Targets(NamedTuple):
    """The server's targets for a round's public samples.

    Attributes:
      rows: Masked float32 [P, ...], all rows, or none before the first upload.
      positions: int32 [P], indices of the samples in the public set.
    """

    rows: Masked
    positions: Array


class Downlink(NamedTuple):
    """The part of a downlink that concerns the public set.

    Attributes:
      targets: `Targets.rows`.
      positions: Metadata(Masked int32 [P]), indices of the targets' samples in the public set.
      requested: Metadata(int32 [P]), indices of the samples requested from the client.
    """

    targets: Masked
    positions: Metadata
    requested: Metadata


def no_targets(samples: int, *shape: int) -> Targets:
    """Returns the targets before the first upload: masked rows [samples, *shape]."""
    rows = Masked(jnp.zeros((samples, *shape)), jnp.zeros(samples, bool), FIRST_ROWS)
    return Targets(rows, jnp.zeros(samples, jnp.int32))


def draw(federation: Federation, samples: int, ctx: Context) -> jax.Array:
    """Draws a round's public samples, int32 [samples], without replacement.

    Server and clients draw the same ones.
    """
    assert ctx.shared_key is not None  # as in every round
    size = (samples,)
    chosen = jax.random.choice(ctx.shared_key, federation.public_set.samples, size, replace=False)
    return chosen.astype(jnp.int32)


def send(federation: Federation, bucket: Bucket, targets: Targets, ctx: Context) -> Downlink:
    """Sends targets and the samples requested in this round; a `Method.broadcast`."""
    rows, positions = targets
    named = Masked(positions, rows.mask, FIRST_ROWS)
    requested = draw(federation, len(positions), ctx)
    return Downlink(rows, Metadata(named), Metadata(requested))


def renewed(
    federation: Federation, old: Targets, values: jax.Array, present: jax.Array, ctx: Context
) -> Targets:
    """Returns targets for the samples requested in this round.

    Args:
      federation: the federation.
      old: the previous targets, kept if there was no upload.
      values: float [P, ...], the new targets.
      present: bool scalar, whether there was an upload.
      ctx: the server's context.
    """
    rows = Masked(values, jnp.ones(len(values), bool), FIRST_ROWS)
    return select(present, Targets(rows, draw(federation, len(values), ctx)), old)


def serve_mean(
    federation: Federation, server: Targets, received: dict[str, Received], ctx: Context
) -> tuple[Targets, Metrics]:
    """Averages uploads uniformly into the next targets; a `Method.server_update`.

    An upload has one row for each of the round's samples.
    """
    joined = gather_received(received)
    weights = client_weights(joined)
    mean = weighted_mean(joined.uplink, weights)
    new = renewed(federation, server, mean, weights.any(), ctx)
    return new, {"senders": (weights > 0).sum()}


def samples_at(data: Data, positions: jax.Array) -> Split:
    """Returns public samples by their indices in the public set."""
    return Split(data.splits[PUBLIC].indices[positions], jnp.int32(len(positions)))


def outputs_of(
    bucket: Bucket,
    client: PyTree,
    data: Data,
    positions: jax.Array,
    output: Callable[..., jax.Array] = head_scores,
) -> jax.Array:
    """Computes a model's outputs in evaluation mode for public samples, float [P, D].

    Args:
      bucket, client: the bucket of the client and its state, with the model as "params" and
        "stats".
      data: data with the public set.
      positions: int32 [P], indices in the public set.
      output: (bucket, client, x, mask) -> float [B, D]; by default the logits.
    """
    chosen, size = samples_at(data, positions), min(forward_batch(), len(positions))

    def of_batch(start):
        batch = take_batch(data, chosen.indices, chosen.count, start, size)
        return output(bucket, client, batch.x, batch.mask)

    rows = jax.lax.map(of_batch, jnp.arange(0, len(positions), size))
    return rows.reshape(-1, rows.shape[-1])[: len(positions)]


def recipe_on_public(training: LocalTraining, batch_size: int, epochs: int) -> LocalTraining:
    """Returns the recipe for public samples: local training with other batches and epochs.

    The last batch is kept, and there is no augmentation.
    """
    return dataclasses.replace(
        training,
        batch_size=batch_size,
        epochs=epochs,
        steps=None,
        drop_remainder=False,
        augmentation=None,
    )


def on_split(data: Data, split: Split) -> Data:
    """Returns data that trains on public samples, which need no sample-level privacy."""
    return data._replace(splits=data.splits | {"train": split}, trainer=None)


def digesting(recipe: LocalTraining, distance: Distance) -> Callable[..., tuple[PyTree, jax.Array]]:
    """Makes the training of a model towards targets; without targets, the model is unchanged.

    Args:
      recipe: the recipe of the training, see `recipe_on_public`.
      distance: the loss of a batch.

    Returns:
      (bucket, model, data, targets, key) -> (model, mean loss): the model is a state with "params"
      and "stats", the data have the public set, the key is for order and dropout. The loss is 0
      without targets.
    """

    def digest(bucket: Bucket, model: PyTree, data: Data, targets: Targets, key: jax.Array):
        chosen, values = samples_at(data, targets.positions), dense(targets.rows)
        # The label of a public sample is the index of its target.
        rows = jnp.zeros_like(data.labels).at[chosen.indices].set(jnp.arange(len(values)))
        shown = on_split(data._replace(labels=rows), chosen)

        def loss(params, stats, batch, key) -> Loss:
            representations, stats = batch_features(bucket, params, stats, batch, key)
            scores = logits(bucket, params, representations)
            return Loss(distance(scores, values[batch.y], batch.mask), stats)

        digested, result = train_client(recipe, loss, bucket, model, shown, key)
        # The first round trains in vain: a sample count of 0 would hide the number of steps from
        # FLOP counts.
        exist = targets.rows.mask.any()
        return select(exist, digested, model), jnp.where(exist, result.loss, 0)

    return digest


def received_targets(downlink: Downlink) -> Targets:
    """Returns the targets of a downlink."""
    return Targets(downlink.targets, downlink.positions.value.values)


def digest_and_train(
    training: LocalTraining,
    recipe: LocalTraining,
    distance: Distance,
    output: Callable[..., jax.Array] = head_scores,
) -> ClientUpdate:
    """Makes the `Method.client_update` of clients that learn from targets, and then train.

    Args:
      training: local training on the client's own samples.
      recipe, distance: arguments of `digest`.
      output: (bucket, client, x, mask) -> float [B, D], what clients send for the requested
        samples; by default the logits.
    """
    digest = digesting(recipe, distance)

    def client_update(bucket, client, downlink, data, ctx):
        keys, apart = jax.random.split(ctx.key), jnp.float32(0)
        if ctx.adapt_epochs is None:  # tuning before an evaluation is on the client's own samples
            client, apart = digest(bucket, client, data, received_targets(downlink), keys[0])
        client, result = train_model(training, bucket, client, data, ctx._replace(key=keys[1]))
        uplink = outputs_of(bucket, client, data, downlink.requested.value, output)
        return client, uplink, {"loss": result.loss, "digest_loss": apart}

    return client_update
