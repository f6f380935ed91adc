"""Sample indices of each client, and checks of user-defined splits."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.check.names import kind_of_value
from fedjax_ht.data.conversion import as_array


class ClientIndices(NamedTuple):
    """The samples of a `Dataset` that one client holds.

    Attributes:
      train, val, test: int64 arrays of indices, possibly empty. No index occurs twice in a client.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


Partition = tuple[ClientIndices, ...]  # position i is the client with id i


def all_of(partition: Partition) -> dict[str, np.ndarray]:
    """Returns all clients' samples of each set, ascending: "train", "val" and "test"."""
    return {
        name: np.unique(np.concatenate([getattr(client, name) for client in partition]))
        for name in ClientIndices._fields
    }


def checked_partition(name: str, partition: Any, num_samples: int) -> Partition:
    """Returns a split with its indices as int64 arrays.

    Args:
      name: the name of the data set; messages begin with it.
      partition: one `ClientIndices` per client, of arrays or lists of integers.
      num_samples: number of samples in the data set.

    Raises:
      ValueError: the split is not one `ClientIndices` per client, or an index is not an integer
        from 0 to num_samples - 1, or occurs twice in a client. One line.
    """
    is_list = isinstance(partition, Sequence) and not isinstance(partition, str | ClientIndices)
    if not is_list or not len(partition):
        raise ValueError(
            f"{name}: the split is {kind_of_value(partition)}; it must be a tuple with one "
            "fl.ClientIndices(train, val, test) for each client"
        )
    clients = []
    for i, client in enumerate(partition):
        place = f"{name}: client {i}"
        if not isinstance(client, ClientIndices):
            raise ValueError(
                f"{place} is {kind_of_value(client)}; it must be fl.ClientIndices(train, val, "
                "test), three arrays of sample indices"
            )
        clients.append(ClientIndices(**checked_sets(place, client._asdict(), num_samples)))
    return tuple(clients)


def checked_sets(place: str, sets: Mapping[str, Any], num_samples: int) -> dict[str, np.ndarray]:
    """Returns disjoint sets of samples, with their indices as int64 arrays.

    Args:
      place: the data set or client; messages begin with it.
      sets: name -> indices.
      num_samples: number of samples in the data set.

    Raises:
      ValueError: an index is not an integer from 0 to num_samples - 1, or occurs twice. One line.
    """
    arrays = {}
    for name, indices in sets.items():
        arrays[name] = _as_indices(f"{place}: {name}", indices, num_samples)
    together = np.concatenate([np.zeros(0, np.int64), *arrays.values()])
    indices, counts = np.unique(together, return_counts=True)
    if len(indices) < len(together):
        first = indices[counts > 1][0]
        holders = {name: int(np.sum(x == first)) for name, x in arrays.items() if first in x}
        if len(holders) == 1:
            ((name, times),) = holders.items()
            raise ValueError(f"{place}: sample {first} is {times} times in {name}; give it once")
        raise ValueError(
            f"{place}: sample {first} is in {' and in '.join(holders)}; remove it from one"
        )
    return arrays


def _as_indices(place: str, value: Any, num_samples: int) -> np.ndarray:
    """Returns indices as int64 [M]."""
    try:
        indices = as_array(place, value)
    except ValueError:
        if np.ma.isMaskedArray(value):
            raise
        indices = np.array(None)  # ragged nested lists, or not an array
    if indices.shape == (0,):  # an empty list is an array of floats
        return np.zeros(0, np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            f"{place} is {kind_of_value(value)}, {indices.dtype} {list(indices.shape)}; it must be "
            "the indices of the samples, integers [M], such as np.flatnonzero(mask)"
        )
    outside = indices[(indices < 0) | (indices >= num_samples)]
    if outside.size:
        raise ValueError(
            f"{place} has index {outside[0]}; with {num_samples} samples, indices must be "
            f"from 0 to {num_samples - 1}"
        )
    return indices.astype(np.int64)
