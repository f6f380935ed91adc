"""The clients' uploaded models as one teacher: what each says of a batch, and how much it counts
for a class.

    tau_{i,y} = c_i^y / sum_j c_j^y,   p(y) = sum_j c_j^y / sum_{j,y'} c_j^{y'},   u = sum_i
    tau_{i,y} f_i(s)

c_i^y counts client i's labels y (DFRD's dynamic weighting and label sampling), s is an image made
for label y, u the ensemble's logits. A class that nobody has is never drawn, and all teachers count
alike for it.

Teachers normalise by the statistics of the batch they see, as the clients did in training ("static"
batch norm).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.method import PyTree
from fedjax_ht.core.statistics import norm_moments


class Teachers(NamedTuple):
    """The uploaded models of N clients, bucket after bucket; what did not arrive has weight 0 and
    zeros for parameters.

    Attributes:
      params: bucket name -> {"base", "head"} with a leading axis [P].
      moments: bucket name -> what `norm_moments` returned for each client, with that axis; {}
        without.
      weights: float32 [N, C], tau; every column sums to 1.
      label_shares: float32 [C], p(y).
      present: bool [N].
    """

    params: dict[str, PyTree]
    moments: dict[str, PyTree]
    weights: jax.Array
    label_shares: jax.Array
    present: jax.Array


class Opinions(NamedTuple):
    """What teachers say of a batch.

    Attributes:
      logits: float [N, B, C], each teacher's.
      weights: float [N, B], tau by each sample's label.
      moments: bucket name -> as `norm_moments`, with a leading axis [P]; {} without.
    """

    logits: jax.Array
    weights: jax.Array
    moments: dict[str, PyTree]

    @property
    def ensemble(self) -> jax.Array:
        """u, float [B, C]."""
        return jnp.einsum("nb,nbc->bc", self.weights, self.logits)


def label_weights(counts: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """tau float32 [N, C] and p(y) float32 [C] from c_i^y [N, C] of the clients present, bool
    [N]."""
    counts = jnp.where(present[:, None], counts, 0).astype(jnp.float32)
    of_class = counts.sum(0)
    alike = present / jnp.maximum(present.sum(), 1)
    weights = jnp.where(of_class > 0, counts / jnp.maximum(of_class, 1), alike[:, None])
    return weights, of_class / jnp.maximum(of_class.sum(), 1)


def keep_present(tree: PyTree, present: jax.Array) -> PyTree:
    """Leaves with a leading axis [P], zero where `present` bool [P] is False: what is absent may be
    anything."""
    return jax.tree.map(lambda x: jnp.where(present.reshape(-1, *(1,) * (x.ndim - 1)), x, 0), tree)


def ask(
    buckets: Sequence[Bucket],
    teachers: Teachers,
    x: jax.Array,
    labels: jax.Array,
    with_moments: bool = False,
    low_memory: bool = False,
) -> Opinions:
    """Runs every teacher on one batch; on CPU one after another, elsewhere a bucket's side by side.

    Args:
      buckets: those that uploaded.
      teachers: their models.
      x: float [B, H, W, channels], normalised images.
      labels: int [B], what they were made for.
      with_moments: tell the moments of norms' inputs, too.
      low_memory: one teacher after another on any device, and in a gradient each is run a second
        time, so that no more than one teacher's activations are in memory.
    """
    everyone = jnp.ones(len(x), bool)
    logits, moments = [], {}
    for bucket in buckets:

        def one(params, bucket=bucket):
            found, seen = norm_moments(bucket, params, x, everyone)
            said = bucket.module.apply({"params": params}, found, method="classify")
            return said, seen if with_moments else {}

        params = teachers.params[bucket.name]
        said, seen = each(jax.checkpoint(one) if low_memory else one, params, apart=low_memory)
        logits.append(said)
        moments[bucket.name] = seen
    return Opinions(jnp.concatenate(logits), teachers.weights[:, labels], moments)
