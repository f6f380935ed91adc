"""Counts predictions over a set of samples, and computes the area under the ROC curve."""

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
    """Counts over the samples of a set.

    Attributes:
      correct: rule -> int32, number of correctly classified samples.
      count: int32, number of samples.
      by_class: int32 [3, C], for one rule and each class: its samples, samples predicted as it, and
        samples that are both; () if not counted.
      auc: float32, for the same rule, see `macro_auc`; () if not computed.
      sums: rule -> `Task.sums`, for tasks other than classification, which count nothing.
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
    """Counts predictions over a split, or computes the sums of another task.

    Args:
      predict: (x, mask) -> {rule: scores [B, C]}, or None. A score of -inf means "no prediction"; a
        sample whose scores are all -inf is wrong.
      data: the data that the split indexes.
      split: the samples to score.
      batch_size: samples per call.
      task: the task of the data.
      by_class_of: the rule whose predictions are also counted by class; None for none.
      auc: True also computes the AUC of this rule, which keeps the scores of all samples in memory.
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
            # The last batch is padded with samples that are masked here.
            predicted = jnp.isfinite(jnp.max(s, -1)) & batch.mask
            choice = jnp.argmax(s, -1)
            hits = (choice == batch.y) & predicted
            added[rule] = correct[rule] + jnp.sum(hits, dtype=jnp.int32)
            if rule == by_class_of:
                kinds = ((batch.mask, batch.y), (predicted, choice), (hits, choice))
                labels = jnp.stack([jnp.where(*kind, -1) for kind in kinds])  # -1: no class
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
    """Computes the mean one-vs-rest AUC over the classes among the labels.

    The AUC of a class is the probability that a sample of it has a higher score for the class than
    a sample of another class, where ties count half (Mann and Whitney's U). Scores need not be
    probabilities: they may be negative distances. NaN counts as -inf, which means "no prediction".

    Args:
      scores: float [N, C].
      labels: int [N].
      mask: bool [N], False marks padding.

    Returns:
      float32; NaN if the labels have fewer than two classes.
    """
    counted = mask[:, None]
    # Padding is sorted behind all samples, so that it counts as below none of them.
    scores = jnp.where(counted, jnp.where(jnp.isnan(scores), -jnp.inf, scores), jnp.inf)
    ordered, total = jnp.sort(scores, axis=0), jnp.sum(mask, dtype=jnp.int32)

    def places(side):
        find = jax.vmap(lambda column, of: jnp.searchsorted(column, of, side=side), 1, 1)
        # Only a score of inf equals padding.
        return jnp.minimum(find(ordered, scores), total)

    of_class = counted & (labels[:, None] == jnp.arange(scores.shape[1]))
    positives = jnp.sum(of_class, 0, dtype=jnp.int32)
    negatives = total - positives
    # Twice the number of scores below the sample's, plus the number equal to it (itself included).
    below = jnp.where(of_class, places("left") + places("right"), 0)
    # Sums over a large set would not fit into int32; means are accurate enough in float32. The last
    # term subtracts the pairs within the class.
    wins = jnp.sum(below / jnp.maximum(positives, 1), 0) - positives
    areas = wins / (2 * jnp.maximum(negatives, 1))
    known = (positives > 0) & (negatives > 0)
    mean = jnp.sum(jnp.where(known, areas, 0)) / jnp.maximum(jnp.sum(known), 1)
    return jnp.where(jnp.any(known), mean, jnp.nan).astype(jnp.float32)
