"""Counts of the predictions over a set of samples, and the area under the ROC curve."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from fedjax_ht.core.batches import Batch, sum_batches, take_batch
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.task import CLASSIFICATION, Task
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree


class Scores(NamedTuple):
    """The counts of a set's samples.

    Attributes:
      correct: rule -> int32, samples that are classified correctly.
      count: int32, samples.
      by_class: int32 [3, C], by one rule: the samples of each class, those predicted to be of it,
        and those of both; () where they are not counted.
      auc: float32, by the same rule, see `macro_auc`; () where it is not computed.
      sums: rule -> `Task.sums`, of tasks other than classification, for which nothing is counted.
    """

    correct: dict[str, Int[HostNumber, "*clients"]]
    count: Int[HostNumber, "*clients"]  # pyright: ignore[reportIncompatibleMethodOverride]
    by_class: Int[HostArray, "*clients 3 C"] | tuple[()] = ()
    auc: Float[HostNumber, "*clients"] | tuple[()] = ()
    sums: dict[str, PyTree] | tuple[()] = ()


def score(
    predict: Callable[[PyTree, Bool[Array, " B"]], dict[str, Float[Array, "B C"]] | None],
    data: Data,
    split: Split,
    batch_size: int,
    *,
    task: Task = CLASSIFICATION,
    by_class_of: str | None = None,
    auc: bool = False,
) -> Scores:
    """Counts predictions over a split, or sums over its samples what another task asks for.

    Args:
      predict: (x, mask) -> {rule: scores [B, C]}, or None. A score of -inf says "no prediction"; a
        sample whose scores are all -inf is wrong.
      data: the data that the split indexes.
      split: the samples to score.
      batch_size: samples a call.
      task: the task of the data.
      by_class_of: the rule whose predictions are counted by class, too; None counts none.
      auc: True computes the AUC of this rule, too; it keeps the scores of all samples meanwhile.
    """

    def by_rule(batch: Batch):
        return predict(batch.x, batch.mask) or {}

    if (sums_of := task.sums) is not None:

        def sums(batch: Batch):
            outputs = by_rule(batch)
            return {rule: sums_of(s, batch.y, batch.mask) for rule, s in outputs.items()}

        return Scores({}, split.count, sums=sum_batches(sums, data, split, batch_size))

    batches = (split.count + batch_size - 1) // batch_size

    def scored(i):
        batch = take_batch(data, split.indices, split.count, i * batch_size, batch_size)
        return by_rule(batch), batch

    def body(i, counts):
        correct, by_class, kept = counts
        scores, batch = scored(i)
        added = {}
        for rule, s in scores.items():
            # The last batch is filled up with samples that are masked out here.
            predicted = jnp.isfinite(jnp.max(s, -1)) & batch.mask
            choice = jnp.argmax(s, -1)
            hits = (choice == batch.y) & predicted
            added[rule] = correct[rule] + jnp.sum(hits, dtype=jnp.int32)
            if rule == by_class_of:
                kinds = ((batch.mask, batch.y), (predicted, choice), (hits, choice))
                labels = jnp.stack([jnp.where(*kind, -1) for kind in kinds])  # -1: of no class
                is_of = labels[..., None] == jnp.arange(s.shape[-1])
                by_class += jnp.sum(is_of, 1, dtype=jnp.int32)
                if auc:
                    kept = lax.dynamic_update_slice_in_dim(kept, s, i * batch_size, 0)
        return added, by_class, kept

    rules = jax.eval_shape(scored, jnp.int32(0))[0]
    by_class, kept, places = (), (), split.indices.shape[0]
    has_rule = by_class_of in rules
    if has_rule:
        form = rules[by_class_of]
        by_class = jnp.zeros((3, form.shape[-1]), jnp.int32)
        if auc:  # room for whole batches
            rows = -(-places // batch_size) * batch_size
            kept = jnp.zeros((rows, form.shape[-1]), form.dtype)
    start = {rule: jnp.int32(0) for rule in rules}, by_class, kept
    correct, by_class, kept = lax.fori_loop(0, batches, body, start)
    area = ()
    if auc and has_rule:
        is_sample = jnp.arange(places) < split.count
        area = macro_auc(kept[:places], data.labels[split.indices], is_sample)
    return Scores(correct, split.count, by_class, area)


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
