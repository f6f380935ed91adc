"""A few classes per client: PFLlib's "pathological" blocks, and pFedHN's random class shares.

FedSSA uses the latter.
"""

import numpy as np

from fedjax_ht.check.options import Count, Part, Rest, Whole
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.dirichlet import pfllib_least
from fedjax_ht.data.partition.splits import (
    Plan,
    Sets,
    by_class,
    deal_classes,
    official_sets,
    split_client,
)


def pathological(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    rng: np.random.RandomState,
    *,
    classes_per_client: Count = 2,
    balanced: bool = False,
) -> Plan:
    """PFLlib's "pat": fixed blocks of clients share the same few classes.

    It cuts them from the same stream. Class after class goes, in the dataset's order, to the first
    ceil(num_clients / num_classes * classes_per_client) clients that still want classes. All but
    the last of them take a random amount between a tenth of an equal share and an equal share, or
    an equal share if `balanced`; the last takes the rest. Where classes and clients do not come out
    even, the last clients hold fewer classes, or the last classes stay unused (Flowers102 with 20
    clients of 10).

    Args:
      labels: int [N].
      num_clients: number of clients.
      num_classes: number of classes of the data.
      rng: the stream, continued by the split of the clients.
      classes_per_client: number of classes that a client holds.
      balanced: equal shares of a class for the clients that share it, instead of random ones.

    Raises:
      ValueError: a class is too small for its clients.
    """
    left = np.full(num_clients, classes_per_client)  # classes that a client still takes
    hands = [[] for _ in range(num_clients)]
    block = int(np.ceil(num_clients / num_classes * classes_per_client))
    least = pfllib_least(len(labels), num_clients) / num_classes
    for c, members in enumerate(by_class(labels, num_classes)):
        owners = np.flatnonzero(left)[:block]
        if not len(owners):
            break
        equal = len(members) / len(owners)
        low, high = int(max(equal / 10, least)), int(equal)
        draws = len(owners) > 1 and not balanced
        if high < 1 or (draws and low >= high):
            raise ValueError(
                f"class {c} has {len(members)} samples, too few for the {len(owners)} clients that "
                "share it; lower num_clients or classes_per_client"
            )
        if balanced:
            sizes = np.full(len(owners) - 1, high)
        else:
            sizes = rng.randint(low, high, len(owners) - 1)
        for client, share in zip(owners, np.split(members, np.cumsum(sizes))):
            hands[client].append(share)
        left[owners] -= 1
    return [np.concatenate(hand) for hand in hands]


def class_shares(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    classes_per_client: Count = 2,
    val_size: Whole = 10_000,
    sets: Sets = "official",
    train_share: Part = 0.8,
    val_share: Rest = 0.1,
) -> Partition:
    """One plan of classes and shares (Shamsian et al., pFedHN, ICML 2021; FedSSA, FedRAL).

    Every class has classes_per_client * num_clients / num_classes shares, in the ratio of draws
    from U(0.4, 0.6). Client after client takes classes_per_client times the next share of a random
    class among those with most shares left, so at times two of the same. Every sample is used.

    Args:
      dataset: the samples.
      num_clients: number of clients.
      rng: the stream of random numbers.
      classes_per_client: number of shares of classes that a client holds.
      val_size: size of the validation set that is taken from the official training set.
      sets: sets that are dealt by the plan. "official", as released, deals the official training
        set less `val_size` random samples, those, and the official test set; "merged", as the
        papers say, all samples at once, and splits each client's at random.
      train_share: share of a client's samples that train, of merged sets.
      val_share: share of a client's samples that validate, of merged sets; the rest tests.

    Raises:
      ValueError: no official sets, or val_size leaves no training set.
    """
    if sets == "merged":
        weights = _share_plan(num_clients, dataset.num_classes, classes_per_client, rng)
        plan = deal_classes(np.arange(len(dataset.labels)), dataset.labels, weights, rng)
        clients = []
        for x in plan:
            clients.append(
                split_client(x, dataset.labels, rng, train_share, val_share, stratified=False)
            )
        return tuple(clients)
    train, test = official_sets(dataset)
    if val_size >= len(train):
        raise ValueError(
            f"val_size is {val_size}; it must be below the {len(train)} training samples of "
            f"{dataset.name}"
        )
    held_out, train = np.split(rng.permutation(train), [val_size])
    weights = _share_plan(num_clients, dataset.num_classes, classes_per_client, rng)
    plans = [deal_classes(x, dataset.labels, weights, rng) for x in (train, held_out, test)]
    return tuple(ClientIndices(*client) for client in zip(*plans))


def _share_plan(
    num_clients: int, num_classes: int, classes_per_client: int, rng: np.random.RandomState
) -> np.ndarray:
    """The share of each class that a client takes, float64 [num_clients, num_classes].

    Each column sums to 1.
    """
    slots = classes_per_client * num_clients // num_classes
    shares = rng.uniform(0.4, 0.6, (num_classes, slots))
    shares /= shares.sum(1, keepdims=True)
    weights, left = np.zeros((num_clients, num_classes)), np.full(num_classes, slots)
    for client in range(num_clients):
        for _ in range(classes_per_client):
            c = rng.choice(np.flatnonzero(left == left.max()))
            weights[client, c] += shares[c, slots - left[c]]
            left[c] -= 1
    return weights
