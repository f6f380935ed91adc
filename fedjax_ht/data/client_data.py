"""Arranges a data set and its partition for a simulation.

Inputs are stored once; each bucket has the padded indices of its clients.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.federation import Federation, PublicSet
from fedjax_ht.core.inputs import described
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.trees import take
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import checked_partition
from fedjax_ht.data.partition.notes import check_split, split_notes
from fedjax_ht.data.public import check_apart
from fedjax_ht.data.standardise import completed, scale_doubt


class FederationData(NamedTuple):
    """NumPy arrays; a simulation places them on its devices.

    Attributes:
      buckets: bucket name -> Data whose splits are stacked over the bucket's clients ([n, max],
        [n]); the inputs and labels are the same arrays in every bucket. Validation and test sets
        are in a fixed shuffled order, because partitions list them class by class, and some models
        normalise by batch.
      counts: numbers of samples, split name -> int64 [num_clients].
      pooled: "train" and "test" -> all clients' samples as one split, for a model that only the
        server holds.
      public: the public samples as one split, or None.
      public_set: number of public samples, and whether they have labels, or None.
      most_scored: upper bound on the samples of a client's test or validation set.
    """

    buckets: dict[str, Data]
    counts: dict[str, np.ndarray]
    pooled: dict[str, Split]
    most_scored: int
    public: Split | None = None
    public_set: PublicSet | None = None

    def __repr__(self) -> str:
        totals = [f"{int(counts.sum()):,} {name}" for name, counts in self.counts.items()]
        num_clients = self.counts["train"].shape[-1]
        return f"<FederationData of {num_clients} clients: samples {', '.join(totals)}>"


@checked
def make_federation_data(
    dataset: Dataset, partition: Partition, federation: Federation
) -> FederationData:
    """Arranges the data of a split by bucket.

    A UserWarning reports samples of several clients, clients without training or test samples, and
    clients whose test classes are not in their training samples.

    Args:
      dataset: the labelled set that the partition splits.
      partition: one `ClientIndices` per client, from `make_partition` or your own.
      federation: the clients and their buckets.

    Raises:
      ValueError: the partition, the inputs or the classes do not fit the federation; an index of
        the partition is not an integer, is out of range or occurs twice in a client; or there are
        no training or no test samples. One line.

    Example:
      >>> dataset = fl.Dataset("mine", np.zeros((4, 2)), np.array([0, 1, 0, 1]), ("a", "b"))
      >>> none = np.array([], int)
      >>> partition = [fl.ClientIndices(np.array([0, 1]), none, np.array([1]))]
      >>> federation = fl.make_federation({"mlp": fl.mlp(2, (4,))}, (2,), 2, num_clients=1)
      >>> fl.make_federation_data(dataset, partition, federation)
      Traceback (most recent call last):
      ...
      ValueError: mine: client 0: sample 1 is in train and in test; remove it from one
    """
    partition = checked_partition(dataset.name, partition, len(dataset.labels))
    _check_fit(dataset, partition, federation)
    check_split(dataset, partition)
    for note in split_notes(dataset, partition):
        warnings.warn(note, stacklevel=3)  # the caller, outside the check of arguments
    return arranged(dataset, partition, federation)


def arranged(
    dataset: Dataset,
    partition: Partition,
    federation: Federation,
    beside: Sequence[Partition] = (),
) -> FederationData:
    """Arranges a split without checking it, e.g. one without test samples or one already checked.

    Its shapes also fit the splits `beside`, so that one program serves all of them. If the set is
    to be standardised, this partition's training samples determine mean and deviation.

    Raises:
      ValueError: the partition, the inputs or the classes do not fit the federation.
    """
    _check_fit(dataset, partition, federation)
    dataset = completed(dataset, partition)
    if doubt := scale_doubt(dataset, partition):
        warnings.warn(doubt, stacklevel=2)
    splits, counts, pooled = {}, {}, {}
    clients = [client for split in (partition, *beside) for client in split]
    length = max(len(indices) for client in clients for indices in client)
    most_scored = max(max(len(client.test), len(client.val)) for client in clients)
    for name in _SPLITS:
        splits[name] = [getattr(client, name) for client in partition]
        counts[name] = np.array(list(map(len, splits[name])))
        if name != "val":
            longest = max(sum(len(getattr(c, name)) for c in s) for s in (partition, *beside))
            together = stack([mixed(np.concatenate(splits[name]))], longest)
            pooled[name] = take(together, 0)  # remove the client axis
        if name != "train":
            splits[name] = list(map(mixed, splits[name]))
    buckets = {}
    for bucket in federation.buckets:
        members = federation.members(bucket)
        stacked = {}
        for name, indices in splits.items():
            # The same length for all, so that one program serves as many splits as possible.
            stacked[name] = stack([indices[i] for i in members], length)
        buckets[bucket.name] = Data(dataset.inputs, dataset.answers, dataset.preprocess, stacked)
    public = None
    if dataset.public is not None:
        public = Split(dataset.public.astype(np.int32), np.int32(len(dataset.public)))
    return FederationData(
        buckets=buckets,
        counts=counts,
        pooled=pooled,
        public=public,
        public_set=dataset.public_set,
        most_scored=most_scored,
    )


def with_public(data: FederationData) -> FederationData:
    """Returns the data with the public set, if any, as a split of every bucket."""
    if data.public is None:
        return data
    buckets = {}
    for name, bucket in data.buckets.items():
        buckets[name] = bucket._replace(splits=bucket.splits | {PUBLIC: data.public})
    return data._replace(buckets=buckets)


def pooled_of(
    data: FederationData, federation: Federation, clients: np.ndarray
) -> dict[str, Split]:
    """Returns `FederationData.pooled` for some clients, int [n], in arrays of the same length."""
    pooled = {}
    for name, split in data.pooled.items():
        samples = []
        for bucket in federation.buckets:
            of_bucket = data.buckets[bucket.name].splits[name]
            for row in np.flatnonzero(np.isin(federation.members(bucket), clients)):
                own = take(of_bucket, row)
                samples.append(own.indices[: own.count])
        together = stack([mixed(np.concatenate(samples))], len(split.indices))
        pooled[name] = take(together, 0)
    return pooled


_SPLITS = ("train", "val", "test")


def _check_fit(dataset: Dataset, partition: Partition, federation: Federation) -> None:
    if len(partition) != federation.num_clients:
        raise ValueError(
            f"the partition has {len(partition)} clients, the federation {federation.num_clients}; "
            "make both with the same num_clients"
        )
    if dataset.task != federation.task:
        raise ValueError(
            f"{dataset.name} is for {dataset.task.name}, the federation for "
            f"{federation.task.name}; make it with task=dataset.task"
        )
    for bucket in federation.buckets:
        known = getattr(getattr(bucket.module, "base", None), "vocabulary", None)
        if dataset.vocabulary and known is not None and known < dataset.vocabulary:
            raise ValueError(
                f"{dataset.name} has a vocabulary of {dataset.vocabulary} tokens, and model "
                f"{bucket.name!r} of {known}; make it with vocabulary={dataset.vocabulary}"
            )
    if dataset.num_outputs != federation.num_classes:
        kind = "classes" if dataset.targets is None else "targets per sample"
        raise ValueError(
            f"{dataset.name} has {dataset.num_outputs} {kind}, the federation "
            f"{federation.num_classes} outputs; make it with num_classes={dataset.num_outputs}"
        )
    check_apart(dataset, partition)
    for bucket in federation.buckets:
        if bucket.input_shape != dataset.input_shape:
            raise ValueError(
                f"model {bucket.name!r} takes {described(bucket.input_shape)}, "
                f"{dataset.name} has {described(dataset.input_shape)}"
            )


def mixed(indices: np.ndarray) -> np.ndarray:
    """Shuffles indices; the permutation only depends on their number."""
    return np.random.default_rng(0).permutation(indices)


def stack(indices: list[np.ndarray], length: int = 0) -> Split:
    """Pads index arrays to the same length: indices int32 [n, max], count int32 [n].

    max is the `padded_length` of the longest one or of `length`, whichever is larger.
    """
    counts = np.array(list(map(len, indices)), np.int32)
    padded = np.zeros((len(indices), padded_length(max(length, *counts, 0))), np.int32)
    for row, values in zip(padded, indices):
        row[: len(values)] = values
    return Split(padded, counts)


def padded_length(longest: int) -> int:
    """Returns the first of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is at least `longest`.

    Programs are compiled for a length. With few lengths, an existing program often also serves
    another split or a few more samples. Training takes no longer, since loops stop at the counts.
    """
    power = 1 << max(0, int(longest) - 1).bit_length()
    return power * 3 // 4 if power > 2 and longest <= power * 3 // 4 else power
