"""Common steps of partitions: indices by class, weighted distribution, train, val and test sets."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from fedjax_ht.check.options import Part, Rest, checked
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition

Sets = Literal["merged", "official"]
# per client, int64 indices of the samples it holds, before they are split into sets
Plan = list[np.ndarray]


def by_class(labels: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """Returns the ascending int64 indices of each class's samples."""
    return [np.flatnonzero(labels == c) for c in range(num_classes)]


@checked
def class_counts(
    labels: np.ndarray,
    partition: Partition,
    set: Literal["train", "val", "test"] = "train",
    num_classes: int | None = None,
) -> np.ndarray:
    """Counts every client's samples of each class: int64 [num_clients, num_classes].

    Args:
      labels: classes of all samples of the dataset, int [N].
      partition: a split of the dataset.
      set: the set whose samples count.
      num_classes: number of classes; None for the largest label plus one.
    """
    labels = np.asarray(labels)
    if num_classes is None:
        num_classes = int(labels.max()) + 1
    return _counts(labels, [getattr(client, set) for client in partition], num_classes)


def _counts(labels: np.ndarray, plan: Plan, num_classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[indices], minlength=num_classes) for indices in plan])


def official_sets(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns the publisher's training and test indices.

    Raises:
      ValueError: the dataset has no such sets.
    """
    for name in ("train", "test"):
        if name not in dataset.official:
            raise ValueError(
                f"{dataset.name} has no official {name} set; choose a partition of merged data"
            )
    train, test = (np.asarray(dataset.official[name], np.int64) for name in ("train", "test"))
    return train, test


def deal_classes(
    indices: np.ndarray, labels: np.ndarray, weights: np.ndarray, rng: np.random.RandomState
) -> Plan:
    """Shuffles each class and cuts it among the clients in proportion to their weights.

    Args:
      indices: int64 [M], the samples to distribute, each once.
      labels: int [N], of the whole dataset.
      weights: the clients' shares by class, [num_clients, num_classes], at least 0. A client with
        weight 0 gets nothing of a class; a class whose weights are all 0 is unused.
    """
    hands = [[] for _ in weights]
    for members, weight in zip(by_class(labels[indices], weights.shape[1]), weights.T):
        cumulative = np.cumsum(weight)
        shuffled = indices[rng.permutation(members)]
        # the ratio ends at exactly 1, so that rounding loses no sample; the margin keeps edges that
        # are whole numbers but for rounding
        if cumulative[-1] > 0:
            edges = np.floor(cumulative / cumulative[-1] * len(shuffled) + 1e-9).astype(int)
            for hand, share in zip(hands, np.split(shuffled, edges[:-1])):
                hand.append(share)
    return [np.concatenate([indices[:0], *hand]) for hand in hands]


def split_clients(
    plan: Plan,
    labels: np.ndarray,
    rng: np.random.RandomState,
    train_share: float,
    val_share: float,
    *,
    stratified: bool = False,
) -> Partition:
    """Splits each client's samples at random into train, validation and test (the rest).

    Clients are split in order, from one stream; every sample is used once. The first samples of a
    permutation go to test, the next to train and the last to validation. Sizes are rounded down in
    favour of test. Without validation this is scikit-learn's
    `train_test_split(train_size=train_share)` on the same stream. `stratified` splits class by
    class, with sizes rounded to the nearest integer.
    """
    test, train, val = range(3)
    clients = []
    for indices in plan:
        shuffled = indices[rng.permutation(len(indices))]
        groups, rounded = np.zeros(len(shuffled), int), np.floor
        if stratified:
            groups, rounded = labels[shuffled], np.round
        part = np.empty(len(shuffled), int)
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            n = len(members)
            # the margin is for rounding: 0.6 + 0.3 is just below 0.9, but 9 of 10 are intended
            n_train = int(rounded(train_share * n + 1e-9))
            n_fit = int(rounded((train_share + val_share) * n + 1e-9))
            part[members] = np.repeat((test, train, val), (n - n_fit, n_train, n_fit - n_train))
        clients.append(ClientIndices(*(shuffled[part == of_set] for of_set in (train, val, test))))
    return tuple(clients)


def split_plan(
    plan_of: Callable[..., Plan],
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    sets: Sets = "merged",
    train_share: Part | None = None,
    val_share: Rest = 0.0,
    stratified: bool = False,
) -> Partition:
    """Plans the clients' samples, then splits each client's from the same stream.

    Args:
      plan_of: (labels, num_clients, num_classes, rng) -> Plan of indices in `labels`.
      sets: sets that are planned. "merged" plans and splits all samples of the dataset; "official"
        plans the publisher's training set, and distributes each class of its test set in proportion
        to the clients' planned samples of that class.
      train_share: share of a client's planned samples that train, for merged sets; None is 0.75.
        For official sets, all that do not validate train.
      val_share: share of a client's planned samples that validate; for merged sets the rest tests.
      stratified: the same shares in every class of a client.

    Raises:
      ValueError: the dataset has no official sets.
    """
    labels = dataset.labels
    if sets == "merged":
        plan = plan_of(labels, num_clients, dataset.num_classes, rng)
        if train_share is None:
            train_share = 0.75
        return split_clients(plan, labels, rng, train_share, val_share, stratified=stratified)
    train, test = official_sets(dataset)
    plan = []
    for positions in plan_of(labels[train], num_clients, dataset.num_classes, rng):
        plan.append(train[positions])  # indices of the dataset
    weights = _counts(labels, plan, dataset.num_classes)
    clients = split_clients(plan, labels, rng, 1 - val_share, val_share, stratified=stratified)
    tests = deal_classes(test, labels, weights, rng)
    return tuple(client._replace(test=x) for client, x in zip(clients, tests))
