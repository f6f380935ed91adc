"""The data of one federation before it is split: samples, labels and what a model sees of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.core.bounds import FLOAT
from fedjax_ht.core.inputs import (
    AsStored,
    InputShape,
    Pixels,
    Preprocess,
    channels_first,
    on_device,
    shape_of,
)
from fedjax_ht.core.names import meant


class ClientIndices(NamedTuple):
    """Which samples of a `Dataset` one client holds; each an int64 array of indices, possibly
    empty."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


Partition = tuple[ClientIndices, ...]  # position i is the client with id i


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """An immutable labelled set of any kind of samples, kept as it is stored: what a model sees of
    it is made on the device, per batch.

    Attributes:
      name: what the user asked for, such as "cifar10".
      inputs: an array with a leading sample axis [N], or a pytree of such arrays: images uint8 [N,
        H, W, C], sensor windows float [N, T, channels], tokens int [N, length], rows of a table
        float [N, columns]. A read-only view of what was given: who keeps that and writes to it
        changes the set.
      labels: int32 [N], values in [0, num_classes); floats are taken where all are whole numbers.
      class_names: one name per class.
      preprocess: stored inputs -> what a model sees, a pure function that is traced; see
        `core.inputs`. By default images of bytes are `Pixels(0.5, 0.5)`, (x / 255 - 0.5) / 0.5, and
        all else is `AsStored`.
      official: index arrays of the publisher's own sets ("train", "test", at times "val"); empty if
        it has none.
      clients: the split that came with the data (client folders), else None.
      groups: int32 [N], whose or where a sample is from, by number: a person, a hospital, a domain;
        else None.
      vocabulary: of texts the number of token ids, all of which are in [0, vocabulary); else None.
    """

    name: str
    inputs: Any
    labels: np.ndarray
    class_names: tuple[str, ...]
    preprocess: Preprocess | Callable | None = None
    official: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    clients: Partition | None = None
    groups: np.ndarray | None = None
    vocabulary: int | None = None

    def __post_init__(self):
        arrays = jax.tree.leaves(self.inputs)
        if not arrays or not all(
            isinstance(x, np.ndarray) and x.dtype.kind in "iuf" for x in arrays
        ):
            raise ValueError(
                f"{self.name}: inputs must be NumPy arrays of integers or floats, [N, ...]"
            )
        labels = _whole_numbers(self.name, self.labels)
        for x in arrays:
            if labels.shape != x.shape[:1]:
                raise ValueError(
                    f"{self.name}: {len(x) if x.ndim else 'no axis of'} samples but labels of "
                    f"shape {labels.shape}"
                )
            if 0 in x.shape[1:]:
                shape = list(x.shape[1:])
                raise ValueError(f"{self.name}: a sample is {shape}, an array without any number")
            refuse_not_finite(f"{self.name}: inputs", x)
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise ValueError(
                f"{self.name}: labels run from {labels.min()} to {labels.max()}, "
                f"but there are {self.num_classes} class names"
            )
        object.__setattr__(self, "labels", labels.astype(np.int32))
        if self.vocabulary is not None:
            _check_tokens(self.name, self.inputs, self.vocabulary)
        if self.groups is not None:
            if self.groups.shape != self.labels.shape or self.groups.dtype.kind not in "iu":
                raise ValueError(
                    f"{self.name}: groups are {self.groups.dtype} {self.groups.shape}, not "
                    "integers [N]"
                )
            object.__setattr__(self, "groups", self.groups.astype(np.int32))
        object.__setattr__(self, "preprocess", _preprocess(self.name, self.inputs, self.preprocess))
        # the arrays are the caller's
        object.__setattr__(self, "inputs", jax.tree.map(lambda x: x.view(), self.inputs))
        for x in (*jax.tree.leaves(self.inputs), self.labels):
            x.flags.writeable = False

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> InputShape:
        """Of one sample as a model sees it, such as (H, W, C), see `core.inputs.InputShape`."""
        one = jax.tree.map(lambda x: on_device((1, *x.shape[1:]), x.dtype), self.inputs)
        return shape_of(jax.eval_shape(lambda rule, x: rule(x), self.preprocess, one))


def refuse_not_finite(name: str, x: np.ndarray) -> None:
    """Refuses floats that no compiled function could hold as finite numbers.

    Raises:
      ValueError: a value is NaN, infinite or beyond float32.
    """
    # The extremes need no array of the size of x, and are NaN where any value is.
    if x.dtype.kind != "f" or not x.size or -FLOAT <= float(x.min()) <= float(x.max()) <= FLOAT:
        return
    sample = next(i for i, row in enumerate(x) if not np.all(np.abs(np.float64(row)) <= FLOAT))
    raise ValueError(
        f"{name} has values that are NaN, infinite or beyond float32, first in sample {sample}"
    )


def _whole_numbers(name: str, labels: np.ndarray) -> np.ndarray:
    """Returns the labels as integers, a copy.

    Raises:
      ValueError: they are no array, or not whole numbers.
    """
    if not isinstance(labels, np.ndarray):
        raise ValueError(
            f"{name}: labels are a {type(labels).__name__}; they must be a NumPy array of integers "
            "[N]"
        )
    if labels.dtype.kind not in "iubf":
        raise ValueError(
            f"{name}: labels are {labels.dtype}; they must be integers from 0: "
            "names, labels = np.unique(labels, return_inverse=True) numbers them"
        )
    if labels.dtype.kind == "f":
        broken = labels[~np.isfinite(labels) | (labels != np.floor(labels))]
        if broken.size:
            raise ValueError(
                f"{name}: labels have values such as {broken[0]:g}; they must be whole numbers "
                "from 0"
            )
    return labels.astype(np.int64)


def _check_tokens(name: str, inputs: Any, vocabulary: int) -> None:
    if not isinstance(inputs, np.ndarray) or inputs.ndim != 2 or inputs.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: vocabulary is {vocabulary}, which is for tokens, an integer array [N, length]"
        )
    if inputs.size and not 0 <= inputs.min() <= inputs.max() < vocabulary:
        raise ValueError(
            f"{name}: token ids run from {inputs.min()} to {inputs.max()}; vocabulary is "
            f"{vocabulary}"
        )


def _preprocess(name: str, inputs: Any, preprocess: Preprocess | Callable | None) -> Preprocess:
    """A set's rule, as a pytree."""
    images = isinstance(inputs, np.ndarray) and inputs.ndim == 4
    if images and isinstance(preprocess, Pixels | None) and channels_first(inputs.shape):
        raise ValueError(
            f"{name}: inputs {list(inputs.shape)} look like [N, C, H, W]; images are [N, H, W, C]: "
            "give inputs.transpose(0, 2, 3, 1), or preprocess=fl.AsStored() if they are not images"
        )
    if preprocess is None:
        bytes_ = [x for x in jax.tree.leaves(inputs) if x.dtype == np.uint8]
        if bytes_ and not images:
            raise ValueError(
                f"{name}: uint8 {list(bytes_[0].shape)} could be anything: images are [N, H, W, "
                "channels], tokens of "
                "another integer type; or say by preprocess what a model sees of it"
            )
        preprocess = Pixels() if bytes_ else AsStored()
    if not isinstance(preprocess, Pixels):
        own = jax.tree_util.all_leaves([preprocess])  # a function, and no pytree yet
        return jax.tree_util.Partial(preprocess) if own else preprocess
    if not images:
        raise ValueError(f"{name}: preprocess is Pixels, which is for images [N, H, W, channels]")
    return Pixels(
        *(
            _by_channel(name, field, getattr(preprocess, field), inputs.shape[-1])
            for field in Pixels._fields
        )
    )


def _by_channel(name: str, field: str, value: Any, channels: int) -> np.ndarray:
    """float32 [channels]; one number serves all."""
    values = np.ravel(np.asarray(value, np.float32))
    if len(values) not in (1, channels):
        raise ValueError(f"{name}: {field} has {len(values)} values for {channels} channels")
    return np.repeat(values, channels // len(values))


def subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """`count` random samples of a dataset, in the order they had; the publisher's sets shrink with
    it.

    Raises:
      ValueError: there are not that many samples, or the data came split over clients already.
    """
    if not 0 < count <= len(dataset.labels):
        raise ValueError(f"subset is {count}; {dataset.name} has {len(dataset.labels)} samples")
    if dataset.clients is not None:
        raise ValueError(
            f"subset is {count}, but the clients of {dataset.name} come with their samples; set it "
            "to 0"
        )
    kept = np.sort(np.random.default_rng(seed).permutation(len(dataset.labels))[:count])
    return _selected(dataset, kept, dataset.labels, dataset.class_names)


def of_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The samples of some classes, in the order they had; labels are positions in `names`.

    Raises:
      ValueError: there is no such class, one is named twice, or the data came split over clients
        already.
    """
    others = [name for name in names if name not in dataset.class_names]
    if others or len(set(names)) < len(names):
        first = ", ".join(dataset.class_names[:10])
        there = f"the classes of {dataset.name} are {first}{', ...' if dataset.num_classes > 10 else ''}"
        hint = meant(others[0], dataset.class_names, there) if others else f"; {there}"
        raise ValueError(f"classes has {repr(others[0]) if others else 'a name twice'}{hint}")
    if dataset.clients is not None:
        raise ValueError(
            f"classes is given, but the clients of {dataset.name} come with their samples; leave "
            "it empty"
        )
    label = np.full(dataset.num_classes, -1)
    label[[dataset.class_names.index(name) for name in names]] = np.arange(len(names))
    labels = label[dataset.labels]
    return _selected(dataset, np.flatnonzero(labels >= 0), labels, tuple(names))


def _selected(
    dataset: Dataset, kept: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]
) -> Dataset:
    """The samples at indices `kept`, ascending; the publisher's sets shrink with them."""
    position = np.full(len(dataset.labels), -1)
    position[kept] = np.arange(len(kept))
    official = {
        name: position[index][position[index] >= 0] for name, index in dataset.official.items()
    }
    inputs = jax.tree.map(lambda x: x[kept], dataset.inputs)
    kept_of = {"inputs": inputs, "labels": labels[kept]}
    kept_of |= {} if dataset.groups is None else {"groups": dataset.groups[kept]}
    return dataclasses.replace(dataset, class_names=class_names, official=official, **kept_of)
