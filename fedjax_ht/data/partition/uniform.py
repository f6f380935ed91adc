"""Partitions without label skew: equal random parts, and a few samples of every class."""

import numpy as np

from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.partition.splits import Plan, by_class


def iid(labels: np.ndarray, num_clients: int, num_classes: int, rng: np.random.RandomState) -> Plan:
    """A random permutation of all samples cut into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), num_clients)


def few_shot(dataset: Dataset, num_clients: int, rng: np.random.RandomState, *, shots: int = 5) -> Partition:
    """Every client trains on `shots` random samples of every class; the rest of all samples is dealt out for testing.

    Raises:
      ValueError: a class has fewer than shots * num_clients samples.
    """
    train, test = [], []
    for c, members in enumerate(by_class(dataset.labels, dataset.num_classes)):
        needed = shots * num_clients
        if len(members) < needed:
            raise ValueError(
                f"class {c} has {len(members)} samples, but {shots} shots for {num_clients} clients are {needed}; "
                "lower shots or num_clients"
            )
        shown, rest = np.split(rng.permutation(members), [needed])
        train.append(np.split(shown, num_clients))
        test.append(np.array_split(rest, num_clients))
    joined = [[np.concatenate(parts) for parts in zip(*sets)] for sets in (train, test)]
    return tuple(ClientIndices(x, x[:0], y) for x, y in zip(*joined))
