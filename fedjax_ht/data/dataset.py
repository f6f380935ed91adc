"""The data of one federation before it is split: images, labels and how to normalise them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.names import meant


class ClientIndices(NamedTuple):
    """Which samples of a `Dataset` one client holds; each an int64 array of indices, possibly empty."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


Partition = tuple[ClientIndices, ...]  # position i is the client with id i


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """An immutable labelled image set, kept as bytes: normalisation happens on the device, per batch.

    Attributes:
      name: what the user asked for, such as "cifar10".
      images: uint8 [N, H, W, C], C is 1 or 3; a read-only view of what was given. Who keeps that and writes to it
        changes the set.
      labels: int32 [N], values in [0, num_classes).
      class_names: one name per class.
      mean, std: per channel, of pixels scaled to [0, 1]; a model sees (x / 255 - mean) / std.
      official: index arrays of the publisher's own sets ("train", "test", at times "val"); empty if it has none.
      clients: the split that came with the data (client folders), else None.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    official: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    clients: Partition | None = None

    def __post_init__(self):
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[-1] not in (1, 3):
            raise ValueError(
                f"{self.name}: images must be uint8 [N, H, W, 1 or 3], got {self.images.dtype} {self.images.shape}"
            )
        if self.labels.shape != self.images.shape[:1]:
            raise ValueError(f"{self.name}: {len(self.images)} images but labels of shape {self.labels.shape}")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.num_classes:
            raise ValueError(
                f"{self.name}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"but there are {self.num_classes} class names"
            )
        channels = self.images.shape[-1]
        for field in ("mean", "std"):  # one number serves every channel
            values = tuple(float(v) for v in getattr(self, field))
            if len(values) not in (1, channels):
                raise ValueError(f"{self.name}: {field} has {len(values)} values for {channels} channels")
            object.__setattr__(self, field, values * (channels // len(values)))
        object.__setattr__(self, "labels", self.labels.astype(np.int32))
        object.__setattr__(self, "images", self.images.view())  # the array itself is the caller's
        self.images.flags.writeable = False
        self.labels.flags.writeable = False

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.images.shape[1:]


def subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """`count` random samples of a dataset, in the order they had; the publisher's sets shrink with it.

    Raises:
      ValueError: there are not that many samples, or the data came split over clients already.
    """
    if not 0 < count <= len(dataset.labels):
        raise ValueError(f"subset is {count}; {dataset.name} has {len(dataset.labels)} samples")
    if dataset.clients is not None:
        raise ValueError(f"subset is {count}, but the clients of {dataset.name} come with their samples; set it to 0")
    kept = np.sort(np.random.default_rng(seed).permutation(len(dataset.labels))[:count])
    return _selected(dataset, kept, dataset.labels, dataset.class_names)


def of_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The samples of some classes, in the order they had; labels are positions in `names`.

    Raises:
      ValueError: there is no such class, one is named twice, or the data came split over clients already.
    """
    others = [name for name in names if name not in dataset.class_names]
    if others or len(set(names)) < len(names):
        first = ", ".join(dataset.class_names[:10])
        there = f"the classes of {dataset.name} are {first}{', ...' if dataset.num_classes > 10 else ''}"
        hint = meant(others[0], dataset.class_names, there) if others else f"; {there}"
        raise ValueError(f"classes has {repr(others[0]) if others else 'a name twice'}{hint}")
    if dataset.clients is not None:
        raise ValueError(f"classes is given, but the clients of {dataset.name} come with their samples; leave it empty")
    label = np.full(dataset.num_classes, -1)
    label[[dataset.class_names.index(name) for name in names]] = np.arange(len(names))
    labels = label[dataset.labels]
    return _selected(dataset, np.flatnonzero(labels >= 0), labels, tuple(names))


def _selected(dataset: Dataset, kept: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]) -> Dataset:
    """The samples at indices `kept`, ascending; the publisher's sets shrink with them."""
    position = np.full(len(dataset.labels), -1)
    position[kept] = np.arange(len(kept))
    official = {name: position[index][position[index] >= 0] for name, index in dataset.official.items()}
    return dataclasses.replace(
        dataset, images=dataset.images[kept], labels=labels[kept], class_names=class_names, official=official
    )
