"""Counts in uploads, and whether they are plausible for a client with its samples.

Servers weight clients by the counts in their uploads (`Metadata`): numbers of samples, in total or
by class. `Wire.counts` says what a method counts.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Num

from fedjax_ht.core.context import Received
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import Array, HostNumber, PyTree
from fedjax_ht.core.wire import Metadata, dense, from_leaves, leaves_of, over_rows

SLACK = 1 + 1e-4  # of sums in float32, which are exact up to 2^24
LARGEST = 2.0**31 - 2**8  # near the largest float32 that an int32 holds


def counts_of(uplink: PyTree) -> list[Num[Array, "..."]]:
    """Returns the counts in an upload, 0 where nothing is sent; bool flags are not counts."""
    counts = []
    for leaf in leaves_of(uplink):
        if isinstance(leaf, Metadata):
            counts += [x for x in jax.tree.leaves(dense(leaf.value)) if x.dtype != bool]
    return counts


def has_counts(form: PyTree) -> bool:
    """Returns whether uploads of this form have counts."""
    return bool(jax.eval_shape(counts_of, form))


def with_scaled_counts(uplink: PyTree, factor: Float[HostNumber, "*clients"] | float) -> PyTree:
    """Multiplies the counts in an upload, and rounds integers down.

    Args:
      uplink: an uplink of one client, or uplinks stacked over P clients.
      factor: the multiplier, a float32 scalar, or [P].
    """

    def scaled(x):
        if x.dtype == bool:
            return x
        product = x.astype(jnp.float32) * over_rows(jnp.asarray(factor), x)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            return product.astype(x.dtype)
        return jnp.floor(jnp.clip(product, -LARGEST, LARGEST)).astype(x.dtype)

    leaves = []
    for leaf in leaves_of(uplink):
        is_metadata = isinstance(leaf, Metadata)
        leaves.append(jax.tree.map(scaled, leaf) if is_metadata else leaf)
    return from_leaves(uplink, leaves)


def counts_fit(method: Method, received: Received, architecture: str = "") -> Bool[Array, " P"]:
    """Returns whether each upload's counts are plausible for its number of samples, bool [P].

    Args:
      method: the method of the uploads.
      received: the uploads of one bucket, with their `info`.
      architecture: the bucket's name, which selects its recipe.
    """
    num_samples = jnp.asarray(received.info.num_samples).astype(jnp.float32)
    fits = jnp.ones(num_samples.shape, bool)
    if method.wire.counts == "other":
        return fits
    if method.wire.counts == "one":
        num_samples = jnp.ones_like(num_samples)
    by_class = num_samples
    if method.wire.counts == "steps":
        training = method.training_of(architecture)
        by_class = jnp.maximum(num_samples, num_steps(training, num_samples) * training.batch_size)
    for counts in counts_of(received.uplink):
        rows = counts.astype(jnp.float32).reshape(len(fits), -1)
        most = by_class if rows.shape[1] > 1 else num_samples
        within = (rows >= 0) & (rows <= most[:, None])  # both are False for NaN
        fits &= within.all(1) & (rows.sum(1) <= SLACK * most)
    return fits
