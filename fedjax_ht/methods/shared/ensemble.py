"""The clients' uploaded models as one teacher, weighted class by class.

    tau_{i,y} = c_i^y / sum_j c_j^y
    p(y)      = sum_j c_j^y / sum_{j,y'} c_j^{y'}
    u         = sum_i tau_{i,y} f_i(s)

c_i^y counts client i's labels y (DFRD's dynamic weighting and label sampling), s is an image made
for label y, u the ensemble's logits. A class that no client has is never drawn, and all teachers
count alike for it.

Teachers normalise by the statistics of the batch they see, as the clients did in training ("static"
batch norm).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.executor import each
from fedjax_ht.core.statistics import norm_moments
from fedjax_ht.core.trees import PyTree


class Teachers(NamedTuple):
    """The uploaded models of N clients, bucket after bucket.

    Models that did not arrive have weight 0 and zeros for parameters.

    Attributes:
      params: bucket name -> {"base", "head"} with a leading axis [P].
      moments: bucket name -> the moments of `norm_moments` with a leading axis [P]; {} without.
      weights: float32 [N, C], tau; every column sums to 1.
      label_shares: float32 [C], p(y).
      present: bool [N], the models that arrived.
    """

    params: dict[str, PyTree]
    moments: dict[str, PyTree]
    weights: jax.Array
    label_shares: jax.Array
    present: jax.Array


class Opinions(NamedTuple):
    """The teachers' outputs of a batch.

    Attributes:
      logits: float [N, B, C], each teacher's.
      weights: float [N, B], tau at each sample's label.
      moments: bucket name -> as `norm_moments`, with a leading axis [P]; {} without.
    """

    logits: jax.Array
    weights: jax.Array
    moments: dict[str, PyTree]

    @property
    def ensemble(self) -> jax.Array:
        """The ensemble's logits u, float [B, C]."""
        return jnp.einsum("nb,nbc->bc", self.weights, self.logits)


def label_weights(counts: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes tau and p(y) from label counts.

    Args:
      counts: label counts c_i^y, [N, C]; those of absent clients are never read.
      present: bool [N], True for the teachers that are there.

    Returns:
      tau float32 [N, C] and p(y) float32 [C].
    """
    counts = jnp.where(present[:, None], counts, 0).astype(jnp.float32)
    of_class = counts.sum(0)
    alike = present / jnp.maximum(present.sum(), 1)
    weights = jnp.where(of_class > 0, counts / jnp.maximum(of_class, 1), alike[:, None])
    return weights, of_class / jnp.maximum(of_class.sum(), 1)


def keep_present(tree: PyTree, present: jax.Array) -> PyTree:
    """Sets rows of leaves [P, ...] to zero where `present` bool [P] is False.

    All teachers run, and the values of absent ones may be NaN.
    """

    def keep(x):
        return jnp.where(present.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)

    return jax.tree.map(keep, tree)


def ask(
    buckets: Sequence[Bucket],
    teachers: Teachers,
    x: jax.Array,
    *,
    labels: jax.Array,
    with_moments: bool = False,
    low_memory: bool = False,
) -> Opinions:
    """Runs every teacher on one batch; on CPU one after another, elsewhere a bucket's side by side.

    Args:
      buckets: the teachers' buckets, in the order of `Teachers.weights`.
      teachers: the teachers' models.
      x: float [B, H, W, channels], normalised images.
      labels: int [B], the classes that the images were made for.
      with_moments: True returns the moments of norms' inputs, too.
      low_memory: True runs one teacher after another on any device, and in a gradient each a second
        time, so that no more than one teacher's activations are in memory.
    """
    everyone = jnp.ones(len(x), bool)
    logits, moments = [], {}
    for bucket in buckets:

        def run(params, bucket=bucket):
            rows, inputs = norm_moments(bucket, params, x, everyone)
            outputs = bucket.module.apply({"params": params}, rows, method="classify")
            return outputs, inputs if with_moments else {}

        if low_memory:  # activations are computed again for the gradient instead of stored
            run = jax.checkpoint(run)
        outputs, moments[bucket.name] = each(run, teachers.params[bucket.name], apart=low_memory)
        logits.append(outputs)
    return Opinions(jnp.concatenate(logits), teachers.weights[:, labels], moments)
