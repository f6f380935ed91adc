"""The area under the ROC curve, from ranks."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_ht.core.trees import Array


def macro_auc(
    scores: Float[Array, "N C"], labels: Int[Array, " N"], mask: Bool[Array, " N"]
) -> Float[Array, ""]:
    """Computes the mean, over the classes among the labels, of the one-vs-rest AUC: the probability
    that a sample of the class has a higher score for it than one of another class, where equal
    scores count half (Mann and Whitney's U).

    Scores are taken as they are: a per-class score need not be a probability, and may be a negative
    distance. NaN counts as -inf, which says "no prediction".

    Args:
      scores: float [N, C].
      labels: int [N].
      mask: bool [N], False marks padding.

    Returns:
      float32; NaN where the labels are of fewer than two classes.
    """
    counted = mask[:, None]
    # Padding goes behind all samples, where it is counted below none of them.
    scores = jnp.where(counted, jnp.where(jnp.isnan(scores), -jnp.inf, scores), jnp.inf)
    ordered, total = jnp.sort(scores, axis=0), jnp.sum(mask, dtype=jnp.int32)

    def places(side):
        find = jax.vmap(lambda column, of: jnp.searchsorted(column, of, side=side), 1, 1)
        # Only a score of inf equals padding.
        return jnp.minimum(find(ordered, scores), total)

    of_class = counted & (labels[:, None] == jnp.arange(scores.shape[1]))
    positives = jnp.sum(of_class, 0, dtype=jnp.int32)
    negatives = total - positives
    # Twice the scores below a sample's own, and once those that equal it, its own included.
    below = jnp.where(of_class, places("left") + places("right"), 0)
    # Means keep float32 exact enough where the sums of a large set would not fit into int32. The
    # pairs within the class make the last term.
    wins = jnp.sum(below / jnp.maximum(positives, 1), 0) - positives
    areas = wins / (2 * jnp.maximum(negatives, 1))
    known = (positives > 0) & (negatives > 0)
    mean = jnp.sum(jnp.where(known, areas, 0)) / jnp.maximum(jnp.sum(known), 1)
    return jnp.where(jnp.any(known), mean, jnp.nan).astype(jnp.float32)
