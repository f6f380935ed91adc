"""The partition that the data has by itself: every client is a person, a hospital, a role or a
domain."""

from typing import Literal

import numpy as np

from fedjax_ht.core.bounds import Part, Rest
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
) -> Partition:
    """Client after client holds the samples of one of `Dataset.groups`, ascending.

    Of fewer clients than groups, each has a group drawn at random. Of several times as many, each
    group is dealt at random to as many clients, one after another.

    Args:
      tested: "random": a random part of a client's own samples tests. "last": the last part in
        stored order, which for recordings is time; validation comes before. "new_groups": clients
        train on all they have, and the samples of groups that are nobody's test, dealt out at
        random: how well do models serve people they never met.
      train_share, val_share: fractions of a client's samples that train and validate. With
        "new_groups" there is nothing of its own to test, and what does not validate trains.

    Raises:
      ValueError: the set has no groups, their number does not fit, or one has fewer samples than
        its clients.
    """
    if dataset.groups is None:
        raise ValueError(
            f"{dataset.name} does not say whose a sample is; partition natural needs Dataset.groups"
        )
    owners = np.unique(dataset.groups)
    each = max(num_clients // len(owners), 1)
    if num_clients > len(owners) and num_clients % len(owners):
        raise ValueError(
            f"num_clients is {num_clients}; {dataset.name} has {len(owners)} groups: take at most "
            "as many clients, or a multiple of it"
        )
    if tested == "new_groups" and num_clients >= len(owners):
        raise ValueError(
            f"num_clients is {num_clients} of {len(owners)} groups of {dataset.name}; "
            "tested='new_groups' needs some that are nobody's"
        )
    chosen = np.sort(rng.permutation(owners)[:num_clients])
    held = [
        part
        for group in chosen
        for part in _deal(np.flatnonzero(dataset.groups == group), each, rng)
    ]
    if tested == "new_groups":
        others = np.array_split(
            rng.permutation(np.flatnonzero(~np.isin(dataset.groups, chosen))), num_clients
        )
        own = [split_client(x, dataset.labels, rng, 1 - val_share, val_share, False) for x in held]
        return tuple(client._replace(test=test) for client, test in zip(own, others))
    if tested == "random":
        return tuple(
            split_client(x, dataset.labels, rng, train_share, val_share, False) for x in held
        )
    ends = [
        [int(share * len(x) + 1e-9) for share in (train_share, train_share + val_share)]
        for x in held
    ]
    return tuple(ClientIndices(*np.split(x, end)) for x, end in zip(held, ends))


def _deal(indices: np.ndarray, clients: int, rng: np.random.RandomState) -> list[np.ndarray]:
    """Parts of equal size, in stored order."""
    if len(indices) < clients:
        raise ValueError(
            f"a group has {len(indices)} samples for {clients} clients; take fewer clients"
        )
    parts = np.array_split(rng.permutation(indices), clients) if clients > 1 else [indices]
    return [np.sort(part) for part in parts]
