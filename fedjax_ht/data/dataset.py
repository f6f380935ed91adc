"""The data of a federation before it is split: samples, labels and the preprocessing rule."""

import dataclasses
import functools
import importlib
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_ht.check.options import Count, check_value
from fedjax_ht.core.federation import PublicSet
from fedjax_ht.core.inputs import (
    AsStored,
    InputShape,
    Pixels,
    Preprocess,
    channels_first,
    on_device,
    shape_of,
)
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.task import CLASSIFICATION, Task
from fedjax_ht.data.conversion import (
    as_groups,
    as_images,
    as_inputs,
    as_labels,
    byte_doubts,
    label_doubts,
)
from fedjax_ht.data.copies import copied
from fedjax_ht.data.indices import ClientIndices as ClientIndices
from fedjax_ht.data.indices import Partition as Partition
from fedjax_ht.data.indices import all_of, checked_partition, checked_sets
from fedjax_ht.data.meaning import coding_doubts, group_doubts, name_doubts, refuse_twice
from fedjax_ht.data.reading import Reading

_LOGGER = logging.getLogger(__name__)


def _readers() -> Any:
    """Returns `fedjax_ht.lab`'s readers of objects, imported by the first `Dataset.from_*`."""
    return importlib.import_module("fedjax_ht.lab.readers.in_memory")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """An immutable labelled data set of any kind of samples, in their stored form.

    The device converts each batch to the model's input.

    Attributes:
      name: the set's name, such as "cifar10".
      inputs: an array with a leading sample axis [N], or a pytree of such arrays: images uint8 [N,
        H, W, C] or grey [N, H, W], sensor windows float [N, T, channels], tokens int [N, length],
        rows of a table float [N, columns]. Lists, and arrays, columns and frames of other libraries
        are also accepted (`data.conversion.as_array`). For an array, this is a read-only view: if
        you write to the array, the set changes.
      labels: the samples' classes, int32 [N], values in [0, num_classes); [N, 1] and integers as
        floats are accepted.
      class_names: names of the classes, in the order of the labels; () for their numbers.
      preprocess: the conversion of stored inputs to a model's, a pure function that is traced; see
        `core.inputs`. The default is `Pixels(0.5, 0.5)`, (x / 255 - 0.5) / 0.5, for images of
        bytes, and else `AsStored`. `Standardised()` subtracts the mean of a partition's training
        samples and divides by their standard deviation.
      official: index arrays of the publisher's own sets ("train", "test", sometimes "val"); empty
        if there are none.
      clients: the split that came with the data (client folders), else None.
      groups: the index of each sample's person, hospital or domain, int32 [N]; else None. Strings
        are numbered in sorted order.
      vocabulary: number of token ids of a set of texts, all of which are in [0, vocabulary); else
        None.
      public: ascending indices of the public samples, which the server and all clients know and no
        client owns, or None. See `data.public`.
      public_is_labelled: True if public samples have true labels; else no method reads them.
      reading: the record of reading its files. For arrays in memory it is empty, and suspicious
        contents are logged once.
      targets: the samples' targets [N, ...] for a task other than classification; None for
        classification. Labels are then groups of similar targets, for partitions, see
        `data.targets`.
      task: the meaning of labels or targets.
    """

    name: str
    inputs: Any
    labels: np.ndarray
    class_names: tuple[str, ...] = ()
    preprocess: Preprocess | Callable | None = None
    official: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    clients: Partition | None = None
    groups: np.ndarray | None = None
    vocabulary: int | None = None
    public: np.ndarray | None = None
    public_is_labelled: bool = True
    reading: Reading | None = None
    targets: np.ndarray | None = None
    task: Task = CLASSIFICATION

    def __post_init__(self):
        _check_kinds(self)
        name = self.name
        labels = as_labels(name, self.labels)
        if not len(labels):
            raise ValueError(f"{name} has no samples")
        if not len(self.class_names):
            object.__setattr__(self, "class_names", _numbered(name, labels))
        refuse_twice(name, self.class_names)
        if not labels.max() < self.num_classes:
            raise ValueError(
                f"{name}: labels run from {labels.min()} to {labels.max()}, "
                f"but there are {self.num_classes} class names"
            )
        inputs = as_inputs(name, self.inputs, len(labels))
        converted: tuple[str, ...] = ()
        if isinstance(self.preprocess, Pixels | None):
            inputs, converted = as_images(inputs)
        _check_samples(name, inputs, labels)
        if self.vocabulary is not None:
            _check_tokens(name, inputs, self.vocabulary)
        fields = {
            "class_names": tuple(self.class_names),
            "labels": labels.astype(np.int32),
            "preprocess": _preprocess_of(name, inputs, self.preprocess),
            # views, since these become read-only, and the arrays are the caller's
            "inputs": jax.tree.map(lambda x: x.view(), inputs),
        }
        fields |= self._checked_parts(labels)
        made_in_memory = self.reading is None
        reading = self.reading or Reading()
        fields["reading"] = dataclasses.replace(reading, converted=(*reading.converted, *converted))
        for field, value in fields.items():
            object.__setattr__(self, field, value)  # the dataclass is frozen
        for x in jax.tree.leaves((self.inputs, self.labels, self.targets)):
            x.flags.writeable = False
        if made_in_memory:
            remedy = "; give preprocess=fl.AsStored() if they are not images"
            for line in (*(change + remedy for change in converted), *self.doubts):
                _LOGGER.warning(f"{name}: {line}")

    def __repr__(self) -> str:
        forms = []
        for x in jax.tree.leaves(self.inputs):
            forms.append(f"{list(x.shape[1:])} {x.dtype}")
        samples = f"{len(self.labels):,} samples of {' and '.join(forms)}"
        outputs = f"{self.num_classes} classes"
        if self.targets is not None:
            outputs = f"{self.num_outputs} outputs, {self.task.name}"
        return f"<Dataset {self.name}: {samples}; {outputs}>"

    def _checked_parts(self, labels: np.ndarray) -> dict[str, Any]:
        """Returns the checked fields that may be absent, such as groups and official sets."""
        parts: dict[str, Any] = {}
        if self.groups is not None:
            parts["groups"] = _checked_groups(self.name, self.groups, labels)
        if self.clients is not None:
            parts["clients"] = checked_partition(self.name, self.clients, len(labels))
        if self.targets is not None:
            parts["targets"] = _checked_targets(self.name, self.targets, self.task, len(labels))
        if self.public is not None:
            sets = {"public": self.public}
            parts |= checked_sets(self.name, sets, len(labels))
        if self.official:
            parts["official"] = checked_sets(f"{self.name}: official", self.official, len(labels))
        return parts

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings on suspicious labels, images and sets, which do not prevent training."""
        lines = self.copied
        if self.targets is None:  # else labels are groups for partitions
            lines = label_doubts(self.labels, self.class_names) + lines
            lines += tuple(name_doubts(self.labels, self.class_names))
            lines += tuple(self._coding_doubts())
        if self.groups is not None and self.reading:
            lines += tuple(group_doubts(self.groups, self.reading.group_names))
        if isinstance(self.preprocess, Pixels):
            lines += byte_doubts(self.inputs)
        return lines

    def _coding_doubts(self) -> list[str]:
        """Warnings on groups, clients or sets that may code their classes differently."""
        lines: list[str] = []
        of_groups: Sequence[str] = self.reading.group_names if self.reading else ()
        if self.groups is not None:
            numbers, owners = np.unique(self.groups, return_inverse=True)
            names = [
                str(of_groups[i]) if 0 <= i < len(of_groups) else f"group {i}" for i in numbers
            ]
            lines += coding_doubts(owners, self.labels, self.class_names, names)
        parts = [dict(self.official)]
        if self.groups is None and self.clients is not None:
            parts.append({f"client {i}": np.concatenate(x) for i, x in enumerate(self.clients)})
        for sets in filter(None, parts):
            rows = np.concatenate(list(sets.values()))
            owners = np.repeat(np.arange(len(sets)), [*map(len, sets.values())])
            lines += coding_doubts(owners, self.labels[rows], self.class_names, list(sets))
        return lines

    @functools.cached_property
    def copied(self) -> tuple[str, ...]:
        """Warnings on samples in two of its official or its clients' sets.

        Raises:
          ValueError: all test samples are training samples. One line.
        """
        sets = self.official
        if not sets and self.clients is not None:
            sets = all_of(self.clients)
        return copied(self.name, self.inputs, sets, self.labels)

    @property
    def public_set(self) -> PublicSet | None:
        """The size of the public set; None without one."""
        if self.public is None:
            return None
        return PublicSet(len(self.public), self.public_is_labelled)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """The number of a model's outputs: classes, or targets per sample."""
        if self.targets is None:
            return self.num_classes
        return self.task.outputs or math.prod(self.task.target[0])

    @property
    def answers(self) -> np.ndarray:
        """The array that models learn to predict: labels, or the targets of another task."""
        return self.labels if self.targets is None else self.targets

    @functools.cached_property
    @standard_numerics()
    def input_shape(self) -> InputShape:
        """The shape of one sample as a model sees it, such as (H, W, C); see `core.inputs`."""
        samples = jax.tree.map(lambda x: on_device((1, *x.shape[1:]), x.dtype), self.inputs)
        return shape_of(jax.eval_shape(lambda rule, x: rule(x), self.preprocess, samples))

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        label: str | None = None,
        *,
        features: Sequence[str] = (),
        group: str | None = None,
        split: str | None = None,
        client: str | None = None,
        text_length: int | None = None,
        tokenizer: str | os.PathLike | None = None,
        task: str = "classification",
        name: str = "frame",
    ) -> "Dataset":
        """Makes a data set from a frame of pandas, Polars or any library that Arrow reads.

        The checks of table files apply. Rows of numbers are standardised by the training samples,
        and columns of text become tokens. One column may have arrays of the same shape. The index
        is not a column.

        Args:
          frame: the frame.
          label: column of the labels; None for a usual name.
          features: columns of the samples, () for all others, "-NAME" for all others but some.
          group: column of each sample's person or place; None for a usual name.
          split: column with the values train, val and test, the official sets; None for none.
          client: column of the client that has a sample, in the set of `split`.
          text_length: number of tokens to which texts are cut or padded; None for 200.
          tokenizer: tokenizer of texts, a tokenizer.json or a folder with one or with vocab.txt,
            which needs the package `tokenizers`; None for words of the training texts.
          task: the meaning of the labels: "classification"; "regression", numbers to predict; or
            "multi-label", 0 and 1 per label. `label` may then be several columns, "a,b".
          name: the set's name.

        Raises:
          ValueError: a value is missing, or a column does not fit its role. One line.

        Examples:
          >>> import pandas as pd  # doctest: +SKIP
          >>> frame = pd.read_excel("patients.xlsx")  # doctest: +SKIP
          >>> dataset = fl.Dataset.from_pandas(frame, "outcome", group="site")  # doctest: +SKIP
        """
        options = {"label": label, "features": features, "group": group}
        options |= {"text_length": text_length, "tokenizer": tokenizer, "task": task}
        return _readers().from_frame(frame, split=split, client=client, name=name, **options)

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        label: str | None = None,
        *,
        features: Sequence[str] = (),
        group: str | None = None,
        split: str | None = None,
        client: str | None = None,
        image_size: int | None = None,
        text_length: int | None = None,
        tokenizer: str | os.PathLike | None = None,
        task: str = "classification",
        name: str | None = None,
    ) -> "Dataset":
        """Makes a data set from a Hugging Face `datasets.Dataset`; nothing is downloaded.

        It may also be a dict of them by set, or a folder of `save_to_disk`.

        Args:
          dataset: the data set, a DatasetDict, or a path, which needs the package `datasets`.
          label: column of the labels; those of a ClassLabel have its names. This and the other
            arguments are as for `from_pandas`.
          image_size: height and width in pixels to resize images to.

        Raises:
          ValueError, FileNotFoundError: as for `from_pandas`, or the folder does not exist. One
            line.
          ImportError: a path is given, and `datasets` is not installed. One line.
        """
        options = {"label": label, "features": features, "group": group, "image_size": image_size}
        options |= {"text_length": text_length, "tokenizer": tokenizer, "task": task}
        read = _readers().from_hugging_face
        return read(dataset, split=split, client=client, name=name, **options)

    @classmethod
    def from_torch(
        cls,
        dataset: Any,
        class_names: Sequence[str] | None = None,
        *,
        groups: Any = None,
        name: str = "torch",
    ) -> "Dataset":
        """Makes a data set from a map-style `torch.utils.data.Dataset` of (sample, label) pairs.

        It is read once, and kept as NumPy arrays. Images, [C, H, W] or [H, W, C], are kept as bytes
        [H, W, C] if their values are among the 256 levels of bytes. Others, such as those of
        torchvision's Normalize, are kept as floats [H, W, C], and models see them unchanged.

        Args:
          dataset: an object with a length and items by index; or a dict of such by set ("train",
            "val", "test"), which are then the official sets.
          class_names: names of the classes; None for the dataset's own (its attribute
            `classes`), else numbers.
          groups: the person, hospital or domain of each sample, [N], in the order of the sets.
          name: the set's name.

        Raises:
          ValueError: an item is not such a pair, or differs when it is read again; samples are of
            several types, such as bytes and floats; or sets have different classes. One line.
        """
        return _readers().from_torch(dataset, class_names, groups, name)


# Checks of the fields, with one-line errors


def _check_kinds(dataset: Any) -> None:
    """Raises ValueError for fields of the wrong type."""
    check_value("name", dataset.name, str)
    name = dataset.name
    check_value(f"{name}: class_names", dataset.class_names, tuple[str, ...])
    check_value(f"{name}: preprocess", dataset.preprocess, Callable | None)
    check_value(f"{name}: vocabulary", dataset.vocabulary, Count | None)
    check_value(f"{name}: official", dataset.official, Mapping)


def _checked_targets(name: str, targets: Any, task: Task, count: int) -> np.ndarray:
    """Returns targets in their task's form, as a view."""
    (shape, dtype), given = task.target, np.asarray(targets)
    if np.iscomplexobj(given):
        raise ValueError(f"{name}: targets are {given.dtype}; {task.name} has {dtype} targets")
    with np.errstate(invalid="ignore", over="ignore"):
        targets = given.astype(dtype, copy=False)
    kept = np.isfinite(targets) if targets.dtype.kind == "f" else targets == given
    if not kept.all():
        raise ValueError(
            f"{name}: {np.sum(~kept)} targets are not finite or no {dtype}, first "
            f"{given[~kept][0]}; {task.name} has {dtype} targets"
        )
    if targets.shape != (count, *shape):
        raise ValueError(
            f"{name}: targets have the shape {list(targets.shape)}; {task.name} of {count} samples "
            f"needs {[count, *shape]}"
        )
    return targets.view()


def _numbered(name: str, labels: np.ndarray) -> tuple[str, ...]:
    """Returns the names "0", "1", ... for classes without names."""
    highest = int(labels.max(initial=0))
    if highest >= max(len(labels), 2):
        raise ValueError(
            f"{name}: labels run to {highest} in {len(labels)} samples; number the classes from 0, "
            "or give class_names"
        )
    return tuple(map(str, range(highest + 1)))


def _check_samples(name: str, inputs: Any, labels: np.ndarray) -> None:
    """Raises ValueError if samples and labels differ in number, or samples are empty."""
    for x in jax.tree.leaves(inputs):
        if labels.shape != x.shape[:1]:
            count = len(x) if x.ndim else "no axis of"
            raise ValueError(f"{name}: {count} samples but labels of shape {labels.shape}")
        if 0 in x.shape[1:]:
            shape = list(x.shape[1:])
            raise ValueError(f"{name}: a sample is {shape}, an empty array")


def _checked_groups(name: str, groups: Any, labels: np.ndarray) -> np.ndarray:
    """Returns the groups as int32 [N]."""
    numbers = as_groups(f"{name}: groups", groups)
    if numbers.shape != labels.shape:
        raise ValueError(f"{name}: groups are {numbers.dtype} {numbers.shape}, not integers [N]")
    return numbers


def _check_tokens(name: str, inputs: Any, vocabulary: int) -> None:
    if not isinstance(inputs, np.ndarray) or inputs.ndim != 2 or inputs.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: vocabulary is {vocabulary}, but inputs are not tokens, integers [N, length]"
        )
    if inputs.size and not 0 <= inputs.min() <= inputs.max() < vocabulary:
        raise ValueError(
            f"{name}: token ids run from {inputs.min()} to {inputs.max()}; with vocabulary "
            f"{vocabulary} they must be from 0 to {vocabulary - 1}"
        )


def _preprocess_of(name: str, inputs: Any, preprocess: Preprocess | Callable | None) -> Preprocess:
    """Returns a set's preprocessing rule as a pytree; None for the usual rule of such inputs."""
    images = isinstance(inputs, np.ndarray) and inputs.ndim == 4
    if images and isinstance(preprocess, Pixels | None) and channels_first(inputs.shape):
        raise ValueError(
            f"{name}: inputs {list(inputs.shape)} look like [N, C, H, W]; images are [N, H, W, C]: "
            "give inputs.transpose(0, 2, 3, 1), or preprocess=fl.AsStored() if they are not images"
        )
    if preprocess is None:
        preprocess = _usual_rule(name, inputs, images)
    if not isinstance(preprocess, Pixels):
        # a function is a leaf, not yet a pytree
        is_function = jax.tree_util.all_leaves([preprocess])
        return jax.tree_util.Partial(preprocess) if is_function else preprocess
    if not images:
        raise ValueError(f"{name}: preprocess is Pixels, which is for images [N, H, W, channels]")
    channels = inputs.shape[-1]
    return Pixels(
        mean=_by_channel(name, "mean", preprocess.mean, channels),
        std=_by_channel(name, "std", preprocess.std, channels),
    )


def _usual_rule(name: str, inputs: Any, images: bool) -> Preprocess:
    """Returns `Pixels` for images of bytes, `AsStored` for all types but bytes."""
    for x in jax.tree.leaves(inputs):
        if x.dtype != np.uint8:
            continue
        if images:
            return Pixels()
        raise ValueError(
            f"{name}: uint8 {list(x.shape)} are neither images, [N, H, W] or [N, H, W, channels], "
            "nor tokens, which have another integer type; give preprocess, which makes them "
            "model inputs"
        )
    return AsStored()


def _by_channel(name: str, field: str, value: Any, channels: int) -> np.ndarray:
    """Returns the mean or standard deviation per channel, float32 [channels].

    A single number applies to all channels.
    """
    values = np.ravel(np.asarray(value, np.float32))
    if len(values) not in (1, channels):
        raise ValueError(f"{name}: {field} has {len(values)} values for {channels} channels")
    return np.repeat(values, channels // len(values))
