"""Batch norm statistics for models with "static" batch norm, which keeps none in training.

Diao et al. (HeteroFL, ICLR 2021) score the server's model with statistics of all clients' training
data, collected after training. For every norm they are the unweighted mean over batches of the
batch's mean and (biased) variance.
"""

import functools
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_ht.core.batches import Batch, sum_batches
from fedjax_ht.core.bucket import Bucket, frozen_collection, init_variables, traceable
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import Array, PyTree


def norm_moments(
    bucket: Bucket, params: PyTree, x: PyTree, mask: Bool[Array, " B"]
) -> tuple[Float[Array, "B K"], PyTree]:
    """Runs the feature extractor in evaluation mode, and collects the moments of norms' inputs.

    Args:
      bucket, params: the model's bucket and parameters.
      x: the model's input, such as images float [B, H, W, C].
      mask: bool [B], True for real samples.

    Returns:
      Features float [B, K], and the mean and variance of the input of every static batch norm, a
      pytree of float [2, channels], {} without such a layer.
    """
    run = functools.partial(bucket.module.apply, method="features", mutable=["intermediates"])
    out, state = run({"params": params} | frozen_collection(bucket), x, False, mask)
    return out, state.get("intermediates", {})


def normalises_by_batch(bucket: Bucket) -> bool:
    """Returns whether norms take their statistics from the batch, in evaluation as well."""

    def moments(key):
        variables = init_variables(bucket, key)
        if variables["stats"]:
            return {}
        x = zeros(bucket.input_shape)
        return norm_moments(traceable(bucket), variables["params"], x, jnp.ones(1, bool))[1]

    return bool(jax.tree.leaves(jax.eval_shape(moments, jax.random.key(0))))


def collect_statistics(
    bucket: Bucket, params: PyTree, data: Data, split: Split, batch_size: int
) -> PyTree:
    """Collects a model's running statistics over samples.

    Args:
      bucket, params: the model's bucket and parameters.
      data, split: the data and its samples, read in order in batches.
      batch_size: samples per batch; a smaller last batch has the same weight as the others.

    Returns:
      The statistics as expected by `bucket.features`; {} if no norm is "static_batch".
    """

    def moments(batch: Batch) -> PyTree:
        return norm_moments(bucket, params, batch.x, batch.mask)[1]

    total = sum_batches(moments, data, split, batch_size)
    batches = (split.count + batch_size - 1) // batch_size
    means = jax.tree.map(lambda x: x / jnp.maximum(batches, 1), total)
    named = {}
    sown: dict[tuple, Any] = flax.traverse_util.flatten_dict(means)
    for path, (values,) in sown.items():  # [2, channels]
        named[*path[:-1], "mean"] = values[0]
        named[*path[:-1], "var"] = values[1]
    return flax.traverse_util.unflatten_dict(named)
