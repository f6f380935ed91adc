"""Stages of a feature extractor: its features after each of them, for methods that classify there.

An extractor notes them by `note_stage`, which does nothing where nobody asks for them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Key

from fedjax_ht.core.bucket import Bucket, init_variables, run_features
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.trees import Array, PyTree

STAGES = "stages"
"""The collection that features are noted in."""


def note_stage(extractor: nn.Module, features: Float[Array, "B ..."]) -> None:
    """Notes the features after a stage of an extractor, in the order of its stages.

    Args:
      extractor: the module that is called, `self`.
      features: float [B, ..., K_i], which are averaged over the axes between, an image's pixels.

    Example:
      >>> class Extractor(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x):
      ...         x = nn.relu(nn.Dense(8)(x.reshape(len(x), -1)))
      ...         fl.models.note_stage(self, x)
      ...         x = nn.relu(nn.Dense(4)(x))
      ...         fl.models.note_stage(self, x)
      ...         return x
    """
    # While a model is drawn all collections are open, and clients keep none but two.
    if extractor.is_mutable_collection(STAGES) and not extractor.is_initializing():
        extractor.sow(STAGES, "features", features.mean(tuple(range(1, features.ndim - 1))))


def stage_features(
    bucket: Bucket,
    params: PyTree,
    stats: PyTree,
    x: PyTree,
    mask: Bool[Array, " B"],
    *,
    train: bool,
    key: Key[Array, ""] | None = None,
) -> tuple[list[Float[Array, "B _"]], PyTree]:
    """Runs the feature extractor; arguments as of `core.bucket.features`.

    Returns:
      The features float [B, K_i] after each stage, none for an extractor that notes none; and the
      new batch statistics.
    """
    collections = ("batch_stats", STAGES)
    _, changed = run_features(
        bucket, params, stats, x, mask, train=train, key=key, mutable=collections
    )
    stages = jax.tree.leaves(changed.get(STAGES, {}))
    return stages, changed.get("batch_stats", stats)


def stage_widths(bucket: Bucket) -> list[int]:
    """Returns the widths K_i of the features after each stage, by tracing."""

    def run(key):
        model, x = init_variables(bucket, key), zeros(bucket.input_shape)
        mask = jnp.ones(1, bool)
        return stage_features(bucket, model["params"], model["stats"], x, mask, train=False)[0]

    return [features.shape[-1] for features in jax.eval_shape(run, jax.random.key(0))]
