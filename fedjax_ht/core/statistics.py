"""Statistics of the data for a model whose norms keep none while it trains ("static" batch norm),
after HeteroFL.

Diao et al. (ICLR 2021) score the server's model by statistics of all clients' training data,
collected after training: for every norm the plain mean over batches of the batch's mean and
(biased) variance.
"""

import flax.traverse_util
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.local_training import take_batch
from fedjax_ht.core.method import Data, PyTree, Split


def norm_moments(
    bucket: Bucket, params: PyTree, x: jax.Array, mask: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Features in evaluation mode, float [B, K], and mean and variance of every batch-normalised
    layer's input: a pytree of float [2, channels], empty where the model has no static batch
    norm."""
    apply = bucket.module.apply
    out, state = apply(
        {"params": params}, x, False, mask, method="features", mutable=["intermediates"]
    )
    return out, state.get("intermediates", {})


def collect_statistics(
    bucket: Bucket, params: PyTree, data: Data, split: Split, batch_size: int
) -> PyTree:
    """Running statistics of a model, as `federation.features` takes them; {} where no norm is
    "static_batch".

    Args:
      bucket, params: the model.
      data, split: the samples, in order, in batches.
      batch_size: samples a batch; the last one may be smaller and counts as much as the others.
    """

    def moments(i):
        batch = take_batch(data, split.indices, split.count, i * batch_size, batch_size)
        return norm_moments(bucket, params, batch.x, batch.mask)[1]

    batches = (split.count + batch_size - 1) // batch_size
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(moments, jnp.int32(0))
    )
    total = lax.fori_loop(
        0, batches, lambda i, sums: jax.tree.map(jnp.add, sums, moments(i)), zeros
    )
    means = jax.tree.map(lambda x: x / jnp.maximum(batches, 1), total)
    flat = flax.traverse_util.flatten_dict(means)  # ..., "moments" -> (float [2, channels],)
    named = {
        (*path[:-1], name): sown[0][i]
        for path, sown in flat.items()
        for i, name in enumerate(("mean", "var"))
    }
    return flax.traverse_util.unflatten_dict(named)
