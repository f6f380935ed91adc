"""Data sets with some samples or some classes of another one."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_ht.check.names import meant
from fedjax_ht.data.dataset import Dataset


def subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """Draws `count` random samples of a dataset, in their original order.

    The official sets keep only these samples.

    Raises:
      ValueError: there are fewer samples, or the data came split over clients.
    """
    if not 0 < count <= len(dataset.labels):
        raise ValueError(
            f"subset is {count}; it must be from 1 to the {len(dataset.labels)} samples of "
            f"{dataset.name}"
        )
    if dataset.clients is not None:
        raise ValueError(
            f"subset is {count}, but the clients of {dataset.name} come with their samples; set it "
            "to 0"
        )
    kept = np.sort(np.random.default_rng(seed).permutation(len(dataset.labels))[:count])
    return of_samples(dataset, kept)


def of_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Selects the samples of some classes, in their original order; labels are indices in `names`.

    Raises:
      ValueError: there is no such class, one is named twice, or the data came split over clients.
    """
    _check_classes(dataset, names)
    if dataset.clients is not None:
        raise ValueError(
            f"classes is given, but the clients of {dataset.name} come with their samples; leave "
            "it empty"
        )
    label = np.full(dataset.num_classes, -1)
    label[[dataset.class_names.index(name) for name in names]] = np.arange(len(names))
    labels = label[dataset.labels]
    return _selected(dataset, np.flatnonzero(labels >= 0), labels, tuple(names))


def of_samples(dataset: Dataset, kept: np.ndarray) -> Dataset:
    """Selects the samples at indices `kept`, ascending."""
    return _selected(dataset, kept, dataset.labels, dataset.class_names)


def _check_classes(dataset: Dataset, names: Sequence[str]) -> None:
    ending = ", ..." if dataset.num_classes > 10 else ""
    known = f"the classes of {dataset.name} are {', '.join(dataset.class_names[:10])}{ending}"
    for name in names:
        if name not in dataset.class_names:
            hint = meant(name, dataset.class_names, known)
            raise ValueError(f"classes has {name!r}{hint}")
    if len(set(names)) < len(names):
        raise ValueError(f"classes contains a name twice; {known}")


def _selected(
    dataset: Dataset, kept: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]
) -> Dataset:
    """Returns the set of the samples at indices `kept`, ascending, also in the official sets."""
    position = np.full(len(dataset.labels), -1)
    position[kept] = np.arange(len(kept))
    official = {}
    for name, index in dataset.official.items():
        positions = position[index]
        official[name] = positions[positions >= 0]
    groups = None if dataset.groups is None else dataset.groups[kept]
    public = dataset.public
    if public is not None:
        public = position[public][position[public] >= 0]
    return dataclasses.replace(
        dataset,
        inputs=jax.tree.map(lambda x: x[kept], dataset.inputs),
        labels=labels[kept],
        targets=None if dataset.targets is None else dataset.targets[kept],
        class_names=class_names,
        official=official,
        groups=groups,
        public=public,
    )
