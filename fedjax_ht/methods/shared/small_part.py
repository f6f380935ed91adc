"""A small part that all clients share, in addition to their own whole models.

The shared part is the auxiliary model of `Bucket.shared`, or its extractor alone. A mixer combines
the features of both extractors into one representation, which the client's own head classifies. A
client's state is {"params", "stats", "shared": {"params", "stats"}} and the mixer's parameters
under the mixer's name. Only the shared part's parameters are sent, both ways. The server averages
them by number of training samples.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import optax

from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, own_features
from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss, TrainingResult
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.mutual import init_pair, take_shared, train_parts
from fedjax_ht.methods.shared.supervised import batch_features


class Rows(NamedTuple):
    """Features of the same samples.

    Attributes:
      private: float [B, K], from the client's own extractor.
      shared: float [B, d], from the shared extractor.
    """

    private: jax.Array
    shared: jax.Array


class Mixer(NamedTuple):
    """The part of a client that mixes the features of both extractors.

    Attributes:
      name: key of the mixer's parameters in a client's state.
      mix: (bucket, {"own": parameters of the client's model, name: those of the mixer}, rows, the
        model's input x) -> float [B, K], the representation that the client's head classifies.
    """

    name: str
    mix: Callable[[Bucket, PyTree, Rows, PyTree], jax.Array]


MixedLoss = Callable[[PyTree, jax.Array, Batch], jax.Array]
"""({"own", "shared", the mixer's name}: parameters, representation float [B, K], batch) -> loss."""


def init_extractor(federation: Federation, key: jax.Array) -> PyTree:
    """Initialises the shared extractor, {"base"}; a `Method.init_server`."""
    return {"base": init_variables(federation.shared, key)["params"]["base"]}


def init_client(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises a client like `mutual.init_pair`, without the head of the shared model."""
    client = init_pair(bucket, ctx)
    return take_shared(client, params={"base": client["shared"]["params"]["base"]})


def require_shared_width(name: str) -> Callable[[Federation], None]:
    """Makes the check of a method that mixes features entry by entry; a `Method.check`.

    Args:
      name: name of the method; the error message starts with it.
    """

    def check(federation: Federation) -> None:
        width = federation.shared.feature_dim
        for bucket in federation.buckets:
            if bucket.feature_dim != width:
                raise ValueError(
                    f"{name} mixes features entry by entry, but the shared model has {width} and "
                    f"model {bucket.name!r} has {bucket.feature_dim}; give all the same width "
                    "(model.feature_dim, model.shared)"
                )

    return check


def mixed_features(
    mixer: Mixer, bucket: Bucket, client: PyTree, x: PyTree, mask: jax.Array
) -> jax.Array:
    """Computes a client's representation in evaluation mode, float [B, K].

    Args:
      mixer: the mixer.
      bucket: the bucket of the client.
      client: the client's state.
      x: the model's input.
      mask: bool [B], the real samples.
    """
    private = own_features(bucket, client, x, mask)
    shared = own_features(bucket.auxiliary, client["shared"], x, mask)
    params = {"own": client["params"], mixer.name: client[mixer.name]}
    return mixer.mix(bucket, params, Rows(private, shared), x)


def train_mixed(
    training: LocalTraining,
    mixer: Mixer,
    bucket: Bucket,
    client: PyTree,
    *,
    data: Data,
    ctx: Context,
    loss: MixedLoss,
    optimizers: Mapping[str, optax.GradientTransformation],
) -> tuple[PyTree, TrainingResult]:
    """Trains a client's own model, mixer and shared part on the loss of the mixed features.

    The own model's batches and dropout are those of `supervised.train_model`. Batch norms normalise
    by the batch and update their statistics, whichever part is trained.

    Args:
      training: the recipe of local training.
      mixer: the mixer.
      bucket: the bucket of the client.
      client: the client's state.
      data, ctx: the client's data and its context, as for `client_update`.
      loss: the loss of one batch.
      optimizers: "own", "shared" or the mixer's name -> the optimizer of that part alone; a part
        without one is not trained.

    Returns:
      The client's new state, and the result of the training.
    """
    mixing = {mixer.name: client[mixer.name]}
    parts = {"own": client["params"], "shared": client["shared"]["params"]} | mixing

    def batch_loss(trained, stats, batch: Batch, key) -> Loss:
        params, shared_key = parts | trained, jax.random.fold_in(key, 1)

        def rows(part: Bucket, name: str, key: jax.Array):
            return batch_features(part, params[name], stats[name], batch, key)

        private, private_stats = rows(bucket, "own", key)
        shared, shared_stats = rows(bucket.auxiliary, "shared", shared_key)
        mixed = mixer.mix(bucket, params, Rows(private, shared), batch.x)
        stats = {"own": private_stats, "shared": shared_stats}
        return Loss(loss(params, mixed, batch), stats)

    client, mixing, result = train_parts(
        training, batch_loss, client, mixing, data=data, key=ctx.key, optimizers=optimizers
    )
    return client | mixing, result
