"""Prototypes: class means, the pull towards global ones, and nearest-prototype scores.

A prototype is the mean feature of a class, float [K]. A client sends those of the classes in its
training samples.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch, ClassSums, class_means, sum_by_class
from fedjax_ht.core.bucket import Bucket, logits, own_features
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import init_model
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.losses import class_prototype_distance, cosines, sample_prototype_mse
from fedjax_ht.methods.shared.supervised import Regulariser, own_classes
from fedjax_ht.methods.shared.variants import Forms, Variant
from fedjax_ht.ops import pairwise_distance

TINY = 1e-12  # least squared length: a row of zeros has no direction
RULES = ("prototype", "own_prototype", "head")  # of `scores`, the reported one first


FORMS: Forms = {"paper": {"weight": 0.1}, "released": {"weight": 10.0}}  # lambda of both methods


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      prototypes: Masked float32 [C, K], sent for the client's classes.
      counts: Metadata(Masked float32 [C]), samples by class; () if not sent.
    """

    prototypes: Masked
    counts: Metadata | tuple


class Uploads(NamedTuple):
    """The clients' prototypes as rows.

    Attributes:
      prototypes: float [M, K].
      labels: int [M], their classes.
      valid: bool [M], the rows that arrived.
    """

    prototypes: jax.Array
    labels: jax.Array
    valid: jax.Array


def class_sums(bucket: Bucket, client: PyTree, data: Data) -> ClassSums:
    """Sums a client's features by class over its training samples, in evaluation mode.

    Args:
      bucket: the bucket of the client.
      client: the client's state, with the model as "params" and "stats".
      data: the client's view of the data.

    Returns:
      `ClassSums`: sums float32 [C, K], counts float32 [C]. A prototype is a class's sum by
      its count.
    """
    extract = functools.partial(own_features, bucket, client)
    return sum_by_class(extract, data, bucket.num_classes)


def prototype_uplink(sums: ClassSums, with_counts: bool = False) -> Uplink:
    """Makes a client's upload: the prototypes of the classes that have samples."""
    present = sums.counts > 0
    counts = Metadata(Masked(sums.counts, present)) if with_counts else ()
    return Uplink(Masked(class_means(sums), present), counts)


def regulariser(prototypes: Masked, weight: float, variant: Variant) -> Regulariser:
    """Makes the penalty that pulls features towards prototypes, for `supervised.train_model`.

    Args:
      prototypes: Masked float [C, K].
      weight: factor on the distance.
      variant: "paper", the distance between class means, or "released", the mean square between
        samples and prototypes.
    """
    distance = class_prototype_distance if variant == "paper" else sample_prototype_mse

    def penalty(features: jax.Array, batch: Batch) -> jax.Array:
        return weight * distance(features, batch.y, batch.mask, prototypes.values, prototypes.mask)

    return penalty


def unit(rows: jax.Array) -> jax.Array:
    """Scales rows float [..., K] to length 1; rows of zeros are unchanged."""
    return rows * jax.lax.rsqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), TINY))


def cosines_to(rows: jax.Array, targets: jax.Array) -> jax.Array:
    """Computes the cosines float [B, C] of rows [B, K] and targets [C, K]; 0 if either is zero."""
    return cosines(rows, unit(targets).T)


def uploaded(received: Received) -> tuple[jax.Array, jax.Array]:
    """Returns the uplinks' prototypes float [P, C, K], and the present ones as bool [P, C]."""
    prototypes = received.uplink.prototypes
    return prototypes.values, prototypes.mask & received.arrived[:, None]


def as_rows(prototypes: jax.Array, present: jax.Array) -> Uploads:
    """Flattens the prototypes of `uploaded` to M = P C rows; absent ones are zero."""
    labels = jnp.broadcast_to(jnp.arange(present.shape[1]), present.shape)
    values = jnp.where(present[..., None], prototypes, 0)
    return Uploads(values.reshape(-1, values.shape[-1]), labels.reshape(-1), present.reshape(-1))


def mean_by_class(
    prototypes: jax.Array, present: jax.Array, weights: jax.Array | None = None
) -> jax.Array:
    """Computes the mean of each class over its uploaders.

    Args:
      prototypes: float [P, C, K]; entries not present are never read.
      present: bool [P, C].
      weights: float [P, C], normalised here; None weighs uploaders equally.

    Returns:
      float [C, K], zero for classes that no client uploaded.

    Example:
      >>> rows = jnp.array([[[1.0], [jnp.nan]], [[3.0], [5.0]]])  # two clients, two classes
      >>> fl.mean_by_class(rows, jnp.array([[True, False], [True, True]]))
      Array([[2.],
             [5.]], dtype=float32)
    """
    weights = present * (1.0 if weights is None else jnp.where(present, weights, 0))
    total = jnp.maximum(weights.sum(0), jnp.finfo(jnp.float32).tiny)
    return weighted_sum(prototypes, weights) / total[:, None]


def no_prototypes(num_classes: int, width: int) -> Masked:
    """Returns a server's prototypes before the first upload, Masked [num_classes, width]."""
    return Masked(jnp.zeros((num_classes, width)), jnp.zeros(num_classes, bool))


def serve_means(
    federation: Federation, server: Masked, received: dict[str, Received], ctx: Context
) -> tuple[Masked, Metrics]:
    """Replaces the prototypes by the means over this round's uploaders; a `Method.server_update`.

    Counts of samples, if uploaded, weigh the uploaders. A round in which only clients without
    samples arrive keeps the prototypes.
    """
    joined = gather_received(received)
    values, present = uploaded(joined)  # [P, C, K], [P, C]
    counts = joined.uplink.counts
    weights = counts.value.values if isinstance(counts, Metadata) else None
    new = Masked(mean_by_class(values, present, weights), present.any(0))
    new = select(present.any(), new, server)
    return new, {"classes": new.mask.sum()}


def init_client(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises a client: a model, and "classes" bool [C], the choices of "own_prototype".

    Until the first `receive` these are all classes.
    """
    return init_model(bucket, ctx) | {"classes": jnp.ones(bucket.num_classes, bool)}


def receive(bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context) -> PyTree:
    """Sets a client's "classes" to those of its training samples; to all if it has none."""
    seen = own_classes(data, bucket.num_classes)
    return client | {"classes": seen | ~seen.any()}


def scores(
    bucket: Bucket, client: PyTree, prototypes: Masked, x: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
    """Computes a batch's scores by each of `RULES`; a `Method.predict`.

    Returns:
      float [B, C] by rule. "prototype" is minus the distance to each global prototype, -inf for
      classes without one. "own_prototype" is the same among the client's classes. "head" is the
      logits of the client's head.
    """
    representations = own_features(bucket, client, x, mask)
    distance = pairwise_distance(representations, prototypes.values)
    nearest = jnp.where(prototypes.mask, -distance, -jnp.inf)
    among_own = jnp.where(client["classes"], nearest, -jnp.inf)
    return {
        "prototype": nearest,
        "own_prototype": among_own,
        "head": logits(bucket, client["params"], representations),
    }
