"""What the prototype methods share: class means, the pull towards global ones, and
nearest-prototype scores.

A prototype is the mean feature of a class, float [K]; the wire carries those of the classes a
client has.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.federation import Bucket, logits, own_features
from fedjax_ht.core.local_training import Batch, ClassSums, class_means, sum_by_class
from fedjax_ht.core.method import Context, Data, PyTree, Received, init_model
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.losses import class_prototype_distance, sample_prototype_mse
from fedjax_ht.methods.shared.supervised import Regulariser, own_classes
from fedjax_ht.ops import pairwise_distance

RULES = ("prototype", "own_prototype", "head")  # of `scores`, the reported one first

Variant = Literal["paper", "released"]


class Uplink(NamedTuple):
    """prototypes: Masked float32 [C, K], the client's own classes. counts: samples per class, or ()
    if not sent."""

    prototypes: Masked
    counts: Metadata | tuple


class Uploads(NamedTuple):
    """What clients uploaded, as rows: prototypes float [M, K], their classes int [M], and which are
    real bool [M]."""

    prototypes: jax.Array
    labels: jax.Array
    valid: jax.Array


def class_sums(bucket: Bucket, client: PyTree, data: Data) -> ClassSums:
    """Per-class sums of the client's features over its training samples, in evaluation mode."""

    def extract(x, mask):
        return own_features(bucket, client, x, mask)

    return sum_by_class(extract, data, bucket.num_classes)


def prototype_uplink(sums: ClassSums, with_counts: bool = False) -> Uplink:
    """The prototypes of the classes that have samples."""
    present = sums.counts > 0
    counts = Metadata(Masked(sums.counts, present)) if with_counts else ()
    return Uplink(Masked(class_means(sums), present), counts)


def regulariser(prototypes: Masked, weight: float, variant: Variant) -> Regulariser:
    """weight times the distance of a batch's features to the global prototypes: between class means
    or, as released, the mean square over samples."""
    distance = class_prototype_distance if variant == "paper" else sample_prototype_mse

    def penalty(features: jax.Array, batch: Batch) -> jax.Array:
        return weight * distance(features, batch.y, batch.mask, prototypes.values, prototypes.mask)

    return penalty


def uploaded(received: Received) -> tuple[jax.Array, jax.Array]:
    """The uplinks' prototypes float [P, C, K], and which of them arrived bool [P, C]."""
    prototypes = received.uplink.prototypes
    return prototypes.values, prototypes.mask & received.arrived[:, None]


def as_rows(prototypes: jax.Array, present: jax.Array) -> Uploads:
    """`uploaded`'s prototypes [P, C, K] one after another, M = P C; absent ones are zero."""
    labels = jnp.broadcast_to(jnp.arange(present.shape[1]), present.shape)
    values = jnp.where(present[..., None], prototypes, 0)
    return Uploads(values.reshape(-1, values.shape[-1]), labels.reshape(-1), present.reshape(-1))


def mean_by_class(
    prototypes: jax.Array, present: jax.Array, weights: jax.Array | None = None
) -> jax.Array:
    """Mean over uploaders of each class.

    Args:
      prototypes: float [P, C, K]; entries not present are never read.
      present: bool [P, C].
      weights: float [P, C], normalised here; None weighs uploaders equally.

    Returns:
      float [C, K], zero where nobody uploaded.
    """
    weights = present * (1.0 if weights is None else jnp.where(present, weights, 0))
    return (
        weighted_sum(prototypes, weights)
        / jnp.maximum(weights.sum(0), jnp.finfo(jnp.float32).tiny)[:, None]
    )


def init_client(bucket: Bucket, ctx: Context) -> PyTree:
    """A model, and "classes" bool [C], those that "own_prototype" chooses among: all, until the
    first receipt."""
    return init_model(bucket, ctx) | {"classes": jnp.ones(bucket.num_classes, bool)}


def receive(bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context) -> PyTree:
    """The client looks up its own classes; without training samples it keeps all."""
    own = own_classes(data, bucket.num_classes)
    return client | {"classes": own | ~own.any()}


def scores(
    bucket: Bucket, client: PyTree, prototypes: Masked, x: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
    """By rule: minus the distance to each global prototype, -inf for classes without one; the same
    among the client's own classes; and the own head's logits."""
    representations = own_features(bucket, client, x, mask)
    distance = pairwise_distance(representations, prototypes.values)
    nearest = jnp.where(prototypes.mask, -distance, -jnp.inf)
    among_own = jnp.where(client["classes"], nearest, -jnp.inf)
    return {
        "prototype": nearest,
        "own_prototype": among_own,
        "head": logits(bucket, client["params"], representations),
    }
