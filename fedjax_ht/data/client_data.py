"""A dataset and its partition as a simulation takes them: inputs once, and per bucket its clients'
padded indices."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import described
from fedjax_ht.core.method import Data, Split
from fedjax_ht.data.dataset import Dataset, Partition


class FederationData(NamedTuple):
    """NumPy arrays; a simulation places them on its devices.

    Attributes:
      buckets: bucket name -> Data whose splits are stacked over the bucket's clients ([n, max],
        [n]); the inputs and labels are the same arrays in every bucket. Validation and test sets
        are in a fixed mixed order, as models that normalise by batch see their batches: partitions
        list them class by class.
      counts: split name -> int64 [num_clients].
      pooled: "train" and "test" -> every client's samples as one split, for a model that only the
        server holds.
    """

    buckets: dict[str, Data]
    counts: dict[str, np.ndarray]
    pooled: dict[str, Split]


def make_federation_data(
    dataset: Dataset, partition: Partition, federation: Federation
) -> FederationData:
    """Arranges the data by bucket.

    Raises:
      ValueError: the partition, the inputs or the classes do not fit the federation.
    """
    if len(partition) != federation.num_clients:
        raise ValueError(
            f"the partition has {len(partition)} clients, the federation {federation.num_clients}"
        )
    if dataset.num_classes != federation.num_classes:
        raise ValueError(
            f"{dataset.name} has {dataset.num_classes} classes, the federation "
            f"{federation.num_classes}"
        )
    for bucket in federation.buckets:
        if bucket.input_shape != dataset.input_shape:
            raise ValueError(
                f"model {bucket.name!r} takes {described(bucket.input_shape)}, "
                f"{dataset.name} has {described(dataset.input_shape)}"
            )
    shared = (dataset.inputs, dataset.labels, dataset.preprocess)
    buckets = {}
    for bucket in federation.buckets:
        clients = [partition[i] for i in federation.members(bucket)]
        evaluated = {
            name: stack([mixed(getattr(c, name)) for c in clients]) for name in ("val", "test")
        }
        buckets[bucket.name] = Data(
            *shared, {"train": stack([c.train for c in clients])} | evaluated
        )
    counts = {
        name: np.array([len(getattr(c, name)) for c in partition])
        for name in ("train", "val", "test")
    }
    pooled = {
        name: mixed(np.concatenate([getattr(c, name) for c in partition]))
        for name in ("train", "test")
    }
    pooled = {
        name: jax.tree.map(lambda x: x[0], stack([indices])) for name, indices in pooled.items()
    }
    return FederationData(buckets, counts, pooled)


def join_trials(trials: Sequence[FederationData]) -> FederationData:
    """Several splits of the same samples as one: splits [trials * n, max], counts [trials,
    num_clients], and pooled sets [trials, max]."""

    def join(splits: Sequence[Split], axis) -> Split:
        width = max(s.indices.shape[-1] for s in splits)

        def pad(x):
            return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])

        return Split(axis([pad(s.indices) for s in splits]), axis([s.count for s in splits]))

    first = trials[0]
    buckets = {
        name: bucket._replace(
            splits={
                k: join([t.buckets[name].splits[k] for t in trials], np.concatenate)
                for k in bucket.splits
            }
        )
        for name, bucket in first.buckets.items()
    }
    counts = {name: np.stack([t.counts[name] for t in trials]) for name in first.counts}
    pooled = {name: join([t.pooled[name] for t in trials], np.stack) for name in first.pooled}
    return FederationData(buckets, counts, pooled)


def mixed(indices: np.ndarray) -> np.ndarray:
    """The same indices in an order of their own, always the same."""
    return np.random.default_rng(0).permutation(indices)


def stack(indices: list[np.ndarray]) -> Split:
    """Pads index arrays to one length: indices int32 [n, max(1, longest)], count int32 [n]."""
    counts = np.array([len(x) for x in indices], np.int32)
    padded = np.zeros((len(indices), max(1, counts.max(initial=0))), np.int32)
    for row, values in zip(padded, indices):
        row[: len(values)] = values
    return Split(padded, counts)
