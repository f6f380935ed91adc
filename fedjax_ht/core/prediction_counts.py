"""Counts of the predictions over a set of samples."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from fedjax_ht.core.auc import macro_auc
from fedjax_ht.core.batches import take_batch
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree


class Scores(NamedTuple):
    """The counts of a set's samples.

    Attributes:
      correct: rule -> int32, samples that are classified correctly.
      count: int32, samples.
      by_class: int32 [3, C], by one rule: the samples of each class, those predicted to be of it,
        and those of both; () where they are not counted.
      auc: float32, by the same rule, see `auc.macro_auc`; () where it is not computed.
    """

    correct: dict[str, Int[HostNumber, "*clients"]]
    count: Int[HostNumber, "*clients"]  # pyright: ignore[reportIncompatibleMethodOverride]
    by_class: Int[HostArray, "*clients 3 C"] | tuple[()] = ()
    auc: Float[HostNumber, "*clients"] | tuple[()] = ()


def score(
    predict: Callable[[PyTree, Bool[Array, " B"]], dict[str, Float[Array, "B C"]] | None],
    data: Data,
    split: Split,
    batch_size: int,
    *,
    by_class_of: str | None = None,
    auc: bool = False,
) -> Scores:
    """Counts predictions over a split.

    Args:
      predict: (x, mask) -> {rule: scores [B, C]}, or None. A score of -inf says "no prediction"; a
        sample whose scores are all -inf is wrong.
      data: the data that the split indexes.
      split: the samples to score.
      batch_size: samples a call.
      by_class_of: the rule whose predictions are counted by class, too; None counts none.
      auc: True computes the AUC of this rule, too; it keeps the scores of all samples meanwhile.
    """

    def scored(i):
        batch = take_batch(data, split.indices, split.count, i * batch_size, batch_size)
        return predict(batch.x, batch.mask) or {}, batch

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
    batches = (split.count + batch_size - 1) // batch_size
    start = {rule: jnp.int32(0) for rule in rules}, by_class, kept
    correct, by_class, kept = lax.fori_loop(0, batches, body, start)
    area = ()
    if auc and has_rule:
        is_sample = jnp.arange(places) < split.count
        area = macro_auc(kept[:places], data.labels[split.indices], is_sample)
    return Scores(correct, split.count, by_class, area)
