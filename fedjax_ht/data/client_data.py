"""A dataset and its partition on the device: images once, and per bucket the padded indices of its clients."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import Data, Split
from fedjax_ht.data.dataset import Dataset, Partition


class FederationData(NamedTuple):
    """Attributes:
    buckets: bucket name -> Data whose splits are stacked over the bucket's clients ([n, max], [n]); the images and
      labels are the same device arrays in every bucket.
    counts: split name -> int64 [num_clients] on the host.
    pooled_test: every client's test samples as one split, for a model that only the server holds.
    """

    buckets: dict[str, Data]
    counts: dict[str, np.ndarray]
    pooled_test: Split


def make_federation_data(dataset: Dataset, partition: Partition, federation: Federation) -> FederationData:
    """Places the data on the device.

    Raises:
      ValueError: the partition, the images or the classes do not fit the federation.
    """
    if len(partition) != federation.num_clients:
        raise ValueError(f"the partition has {len(partition)} clients, the federation {federation.num_clients}")
    if dataset.num_classes != federation.num_classes:
        raise ValueError(f"{dataset.name} has {dataset.num_classes} classes, the federation {federation.num_classes}")
    for bucket in federation.buckets:
        if bucket.input_shape != tuple(dataset.image_shape):
            raise ValueError(
                f"model {bucket.name!r} takes {bucket.input_shape}, {dataset.name} has {dataset.image_shape}"
            )
    images, labels, mean, std = jax.device_put(
        (dataset.images, dataset.labels, np.float32(dataset.mean), np.float32(dataset.std))
    )
    buckets = {}
    for bucket in federation.buckets:
        clients = [partition[i] for i in federation.members(bucket)]
        splits = {name: stack([getattr(c, name) for c in clients]) for name in ("train", "val", "test")}
        buckets[bucket.name] = Data(images, labels, mean, std, jax.device_put(splits))
    counts = {name: np.array([len(getattr(c, name)) for c in partition]) for name in ("train", "val", "test")}
    pooled = stack([np.concatenate([c.test for c in partition])])
    return FederationData(buckets, counts, jax.device_put(Split(pooled.indices[0], pooled.count[0])))


def stack(indices: list[np.ndarray]) -> Split:
    """Pads index arrays to one length: indices int32 [n, max(1, longest)], count int32 [n]."""
    counts = np.array([len(x) for x in indices], np.int32)
    padded = np.zeros((len(indices), max(1, counts.max(initial=0))), np.int32)
    for row, values in zip(padded, indices):
        row[: len(values)] = values
    return Split(padded, counts)
