"""Partitions without label skew: equal random parts, and a few samples of every class."""

import numpy as np

from fedjax_ht.check.options import Count
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.splits import Plan, by_class


def iid(labels: np.ndarray, num_clients: int, num_classes: int, rng: np.random.RandomState) -> Plan:
    """A random permutation of all samples cut into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), num_clients)


def few_shot(
    dataset: Dataset,
    num_clients: int,
    rng: np.random.RandomState,
    *,
    shots: Count = 5,
    test_shots: Count | None = None,
) -> Partition:
    """Trains every client on `shots` random samples of every class.

    It tests on others. The client of FedKTL's Table 9 has 30, 12 or 3 images of each of CIFAR-100's
    classes and splits them 3:1, which is shots 23, 9 or 2 with test_shots 7, 3 or 1; of the last a
    test set is 100 images, and a point one of them.

    Args:
      dataset: the samples.
      num_clients: number of clients.
      rng: the stream of random numbers.
      shots: number of training samples of every class at a client.
      test_shots: number of test samples of every class at a client; None deals out all the rest.

    Raises:
      ValueError: a class has fewer than (shots + test_shots) * num_clients samples.
    """
    train, test = [[] for _ in range(num_clients)], [[] for _ in range(num_clients)]
    trained = shots * num_clients
    needed = trained + (test_shots or 0) * num_clients
    for c, members in enumerate(by_class(dataset.labels, dataset.num_classes)):
        if len(members) < needed:
            each, lower = f"{shots} shots", "shots"
            if test_shots is not None:
                each, lower = f"{shots} shots and {test_shots} test_shots", "them"
            raise ValueError(
                f"class {c} has {len(members)} samples, but {each} for {num_clients} clients are "
                f"{needed}; lower {lower} or num_clients"
            )
        shuffled = rng.permutation(members)
        tested = shuffled[trained : needed if test_shots else None]
        for client, part in enumerate(np.split(shuffled[:trained], num_clients)):
            train[client].append(part)
        for client, part in enumerate(np.array_split(tested, num_clients)):
            test[client].append(part)
    clients = []
    for train_parts, test_parts in zip(train, test):
        indices = np.concatenate(train_parts)
        clients.append(ClientIndices(indices, indices[:0], np.concatenate(test_parts)))
    return tuple(clients)
