"""Checks of a split before anything is compiled: errors, and warnings that affect its results."""

import numpy as np

from fedjax_ht.check.names import listed_clients as clients
from fedjax_ht.data.copies import copied
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import all_of
from fedjax_ht.data.partition.splits import class_counts
from fedjax_ht.data.public import private_indices

FOREIGN, ALONE = 0.02, 0.1
"""Shares above which warnings are given, since every skewed split has a few such cases.

FOREIGN is the share of the mean accuracy that depends on test samples of classes that their client
never trains on. ALONE is the share of clients with a single class.
"""


def check_split(dataset: Dataset, partition: Partition) -> None:
    """Rejects splits on which methods cannot be compared.

    Raises:
      ValueError: no client has a training sample, none has a test sample, or all training samples
        are of one class. One line.
    """
    train = class_counts(dataset.labels, partition, "train", dataset.num_classes)
    if not train.any():
        raise ValueError(
            f"no client of the split of {dataset.name} has a training sample; give each "
            "fl.ClientIndices a train array, or choose a partition with a larger train_share"
        )
    if not any(len(client.test) for client in partition):
        raise ValueError(
            f"no client of the split of {dataset.name} has a test sample, so there is no "
            "accuracy; give each fl.ClientIndices a test array, or choose a partition with "
            "train_share + val_share below 1"
        )
    classes = np.flatnonzero(train.any(0))
    if len(classes) == 1 and dataset.targets is None:
        raise ValueError(
            f"all {train.sum()} training samples of {dataset.name} are of class "
            f"{dataset.class_names[classes[0]]!r}; a classifier needs samples of at least two "
            "classes"
        )


def split_notes(dataset: Dataset, partition: Partition) -> list[str]:
    """Returns warnings on a valid split whose accuracies may be misread; most splits have none."""
    train = class_counts(dataset.labels, partition, "train", dataset.num_classes)
    test = class_counts(dataset.labels, partition, "test", dataset.num_classes)
    sets = all_of(partition)
    held = np.concatenate(list(sets.values()))
    return [
        *_shared_notes(partition),
        *_group_notes(dataset, held),
        *_official_notes(dataset, held),
        # unless the data set has already warned of its own copies
        *(() if dataset.copied else copied(dataset.name, dataset.inputs, sets)),
        *_idle_notes(train, test),
        *(_class_notes(train, test) if dataset.targets is None else ()),
    ]


def _shared_notes(partition: Partition) -> list[str]:
    """Returns warnings on samples of several clients."""
    train = np.concatenate([client.train for client in partition])
    held_out = np.concatenate([x for client in partition for x in (client.val, client.test)])
    notes = []
    leaked = np.intersect1d(train, held_out)
    if len(leaked):
        notes.append(
            f"{len(leaked)} training samples of some clients are validation or test samples of "
            f"others, first sample {leaked[0]}; clients then learn the answers from each other: "
            "keep training samples out of every such set"
        )
    for name, indices in (("train", train), ("validation or test", held_out)):
        samples, counts = np.unique(indices, return_counts=True)
        shared = samples[counts > 1]
        if len(shared):
            notes.append(
                f"{len(shared)} samples are {name} samples of several clients, first sample "
                f"{shared[0]}; assign every sample to one client, unless clients should share "
                "data"
            )
    return notes


def _group_notes(dataset: Dataset, held: np.ndarray) -> list[str]:
    """Returns a warning on groups, such as persons, without a sample `held` by a client."""
    if dataset.groups is None:
        return []
    groups = np.unique(dataset.groups[private_indices(dataset)])
    present = np.unique(dataset.groups[held])
    if len(present) == len(groups):
        return []
    absent = len(groups) - len(present)
    return [f"{absent} of {len(groups)} groups have no client: their samples are unused"]


def _official_notes(dataset: Dataset, held: np.ndarray) -> list[str]:
    """Returns a warning on an official validation set without a sample `held` by a client."""
    val = dataset.official.get("val", ())
    if not len(val) or np.isin(val, held).any():
        return []
    return [
        f"the official val set of {dataset.name}, {len(val)} samples, is unused; val_share "
        "validates on training samples, and sets='merged' uses all, if the partition has them"
    ]


def _idle_notes(train: np.ndarray, test: np.ndarray) -> list[str]:
    """Returns warnings on clients without training or test samples."""
    notes = []
    untrained, untested = np.flatnonzero(train.sum(1) == 0), np.flatnonzero(test.sum(1) == 0)
    if len(untrained):
        notes.append(
            f"{clients(untrained)} of {len(train)} without training samples, which are scored "
            "untrained; give them some, or remove them"
        )
    if len(untested):
        notes.append(
            f"{clients(untested)} of {len(test)} without test samples, which no mean accuracy "
            "includes; give them some, or use fewer clients"
        )
    return notes


def _class_notes(train: np.ndarray, test: np.ndarray) -> list[str]:
    """Returns warnings on the classes that clients train and test on."""
    notes = []
    has_both = (train.sum(1) > 0) & (test.sum(1) > 0)
    foreign = np.where(train == 0, test, 0).sum(1) * has_both
    of_mean = (foreign / np.maximum(test.sum(1), 1)).sum() / max(1, has_both.sum())
    if of_mean >= FOREIGN:
        notes.append(
            f"{clients(np.flatnonzero(foreign))} of {len(test)} with test samples of classes "
            "absent from their training samples, "
            f"{100 * of_mean:.3g} points of the mean accuracy: only other clients can teach them; "
            "stratified=True, if the partition has it, puts each class of a client into both sets"
        )
    alone = np.flatnonzero(has_both & (((train > 0) | (test > 0)).sum(1) == 1))
    if len(alone) and len(alone) >= ALONE * len(train):
        notes.append(
            f"{clients(alone)} of {len(test)} with a single class: a constant prediction scores "
            "100 % there; a larger alpha or classes_per_client mixes classes"
        )
    return notes
