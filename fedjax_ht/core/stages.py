"""Stages of a feature extractor: intermediate features, for methods that classify them.

An extractor records them by `note_stage`, which does nothing unless they are requested.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Key

from fedjax_ht.core.bucket import Bucket, init_variables, run_features, traceable
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.trees import Array, PyTree

STAGES = "stages"
"""The collection of recorded features."""


def note_stage(extractor: nn.Module, features: Float[Array, "B ..."]) -> None:
    """Records the features after a stage of an extractor; call it in the order of its stages.

    Args:
      extractor: the calling module, `self`.
      features: float [B, ..., K_i], averaged over the middle axes (an image's pixels).

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
    # In `init` all collections are mutable, but clients only keep two of them.
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
    """Runs the feature extractor; arguments as for `core.bucket.features`.

    Returns:
      The features float [B, K_i] after each stage (an empty list if the extractor records none),
      and the new batch statistics.

    Raises:
      ValueError: several modules record stages. One line.
    """
    collections = ("batch_stats", STAGES)
    _, changed = run_features(
        bucket, params, stats, x, mask, train=train, key=key, mutable=collections
    )
    recorded = jax.tree.leaves_with_path(changed.get(STAGES, {}))
    modules = {jax.tree_util.keystr(path[:-2], simple=True, separator="/") for path, _ in recorded}
    if len(modules) > 1:  # their order would be that of the names
        raise ValueError(
            f"model {bucket.name!r} notes stages in {', '.join(sorted(modules))}; call "
            "fl.models.note_stage(self, ...) in one module, in the order of the stages"
        )
    return [features for _, features in recorded], changed.get("batch_stats", stats)


def stage_widths(bucket: Bucket) -> list[int]:
    """Returns the feature widths K_i after each stage, by tracing."""
    bucket = traceable(bucket)

    def run(key):
        model, x = init_variables(bucket, key), zeros(bucket.input_shape)
        mask = jnp.ones(1, bool)
        return stage_features(bucket, model["params"], model["stats"], x, mask, train=False)[0]

    return [features.shape[-1] for features in jax.eval_shape(run, jax.random.key(0))]
