"""The partition that the data has by itself: a client is a person, hospital, role or domain."""

from typing import Literal

import numpy as np

from fedjax_ht.check.options import Count, Part, Rest
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.splits import split_client

Tested = Literal["random", "last", "new_groups"]


def natural(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    tested: Tested = "random",
    train_share: Part = 0.75,
    val_share: Rest = 0.0,
    min_samples: Count = 1,
) -> Partition:
    """Client after client holds the samples of one of `Dataset.groups`, ascending.

    Of fewer clients than groups, each has a group drawn at random. Of several times as many, each
    group is dealt at random to as many clients, one after another.

    Args:
      tested: samples that test. "random": a random part of a client's own samples. "last": the
        last part in stored order, which for recordings is time; of what comes before, the last
        samples of each class validate.
        "new_groups": clients train on all they have, and the samples of groups that no client has
        test, dealt out at random, which measures how well models serve people they never met.
      train_share: share of a client's samples that train; with tested="new_groups" all that do not
        validate.
      val_share: share of a client's samples that validate.
      min_samples: fewest samples of a group that becomes a client; smaller ones are left out, and
        with "new_groups" still test.

    Raises:
      ValueError: the set has no groups, their number does not fit, or one has fewer samples than
        its clients.
    """
    if dataset.groups is None:
        raise ValueError(
            f"partition natural needs Dataset.groups, the person or place of each sample, and "
            f"{dataset.name} has none; choose another partition"
        )
    owners = _owners(dataset, dataset.groups, num_clients, tested, min_samples)
    each = max(num_clients // len(owners), 1)
    chosen = np.sort(rng.permutation(owners)[:num_clients])
    parts = []
    for group in chosen:
        parts += _deal(np.flatnonzero(dataset.groups == group), each, rng)
    if tested == "last":
        return tuple(
            _split_in_order(part, dataset.labels, train_share, val_share) for part in parts
        )
    if tested == "random":
        return tuple(
            split_client(part, dataset.labels, rng, train_share, val_share, stratified=False)
            for part in parts
        )
    strangers = rng.permutation(np.flatnonzero(~np.isin(dataset.groups, chosen)))
    clients = []
    for part, test in zip(parts, np.array_split(strangers, num_clients)):
        client = split_client(part, dataset.labels, rng, 1 - val_share, val_share, stratified=False)
        clients.append(client._replace(test=test))
    return tuple(clients)


def _owners(
    dataset: Dataset, groups: np.ndarray, num_clients: int, tested: Tested, min_samples: int
) -> np.ndarray:
    """Returns the groups of at least `min_samples`, if so many clients can be made of them."""
    known, sizes = np.unique(groups, return_counts=True)
    owners = known[sizes >= min_samples]
    if not len(owners):
        raise ValueError(
            f"min_samples is {min_samples}, and the largest group of {dataset.name} has "
            f"{sizes.max(initial=0)} samples"
        )
    large = f" of at least {min_samples} samples" if min_samples > 1 else ""
    if num_clients > len(owners) and num_clients % len(owners):
        raise ValueError(
            f"num_clients is {num_clients}; {dataset.name} has {len(owners)} groups{large}: take "
            "at most as many clients, or a multiple of it"
        )
    if tested == "new_groups" and num_clients >= len(known):
        raise ValueError(
            f"num_clients is {num_clients}, and {dataset.name} has {len(known)} groups; "
            "tested='new_groups' needs groups that no client has: take fewer clients"
        )
    return owners


def _split_in_order(
    part: np.ndarray, labels: np.ndarray, train_share: float, val_share: float
) -> ClientIndices:
    """Splits a client's samples in stored order: the last ones test, and before them the last ones
    of each class validate."""
    # the margin is for floats: 0.6 + 0.3 is just below 0.9, yet 9 of 10 samples are meant
    before, test = np.split(part, [int((train_share + val_share) * len(part) + 1e-9)])
    is_val = np.zeros(len(before), bool)
    # People do one thing after another: the end of all that comes before would hold few classes.
    for label in np.unique(labels[before]):
        of_class = np.flatnonzero(labels[before] == label)
        kept = len(of_class) - round(len(of_class) * val_share / (train_share + val_share))
        is_val[of_class[kept:]] = True
    return ClientIndices(before[~is_val], before[is_val], test)


def _deal(indices: np.ndarray, clients: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """Deals indices out at random in parts of equal size, each in stored order."""
    if len(indices) < clients:
        raise ValueError(
            f"a group has {len(indices)} samples for {clients} clients; take fewer clients"
        )
    parts = np.array_split(rng.permutation(indices), clients) if clients > 1 else [indices]
    return [np.sort(part) for part in parts]
