"""The data of one federation before it is split: samples, labels and the rule of preprocessing."""

import dataclasses
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.federation import PublicSet
from fedjax_ht.core.inputs import InputShape, Pixels, Preprocess, on_device, shape_of
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.data.conversion import as_images, as_inputs, byte_doubts
from fedjax_ht.data.dataset_checks import (
    check_kinds,
    check_samples,
    check_tokens,
    checked_groups,
    preprocess_of,
)
from fedjax_ht.data.indices import ClientIndices as ClientIndices
from fedjax_ht.data.indices import Partition as Partition
from fedjax_ht.data.indices import checked_partition, checked_sets
from fedjax_ht.data.labels import as_labels, label_doubts, refuse_no_label
from fedjax_ht.data.reading import Reading

_LOGGER = logging.getLogger(__name__)


def _readers() -> Any:
    """Returns the laboratory's readers of objects, loaded by the first `Dataset.from_*`."""
    return importlib.import_module("fedjax_ht.lab.readers.in_memory")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """An immutable labelled set of any kind of samples, kept as it is stored.

    What a model sees of it is made on the device, per batch.

    Attributes:
      name: the set's name as the user gave it, such as "cifar10".
      inputs: an array with a leading sample axis [N], or a pytree of such arrays: images uint8 [N,
        H, W, C] or grey [N, H, W], sensor windows float [N, T, channels], tokens int [N, length],
        rows of a table float [N, columns]. Lists, and arrays, columns and frames of other libraries
        are taken, too (`data.conversion.as_array`). Of an array it is a read-only view: writing to
        the array itself changes the set.
      labels: the samples' classes, int32 [N], values in [0, num_classes); [N, 1], and floats where
        all are whole numbers, are taken.
      class_names: names of the classes, in the order of the labels.
      preprocess: the rule that turns stored inputs into a model's, a pure function that is traced;
        see `core.inputs`. By default images of bytes are `Pixels(0.5, 0.5)`, (x / 255 - 0.5) / 0.5,
        and all else is `AsStored`. `Standardised()` subtracts the training samples' mean, and
        divides by their deviation, as soon as a partition says which they are.
      official: index arrays of the publisher's own sets ("train", "test", at times "val"); empty if
        it has none.
      clients: the split that came with the data (client folders), else None.
      groups: the person, hospital or domain that each sample is from, by number, int32 [N]; else
        None. Text is numbered in sorted order.
      vocabulary: number of token ids of a set of texts, all of which are in [0, vocabulary); else
        None.
      public: indices of samples that the server and all clients know and no client owns, ascending;
        None without. See `data.public`.
      public_is_labelled: True if the labels of public samples are theirs; else nothing reads them.
      reading: the record of the reading of its files. A set that is made of arrays in memory has no
        reading yet: oddities in it are logged once.
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
    public: np.ndarray | None = None
    public_is_labelled: bool = True
    reading: Reading | None = None

    def __post_init__(self):
        check_kinds(self)
        name = self.name
        labels = as_labels(name, self.labels)
        refuse_no_label(name, labels, self.class_names)
        if len(labels) and not labels.max() < self.num_classes:
            raise ValueError(
                f"{name}: labels run from {labels.min()} to {labels.max()}, "
                f"but there are {self.num_classes} class names"
            )
        inputs = as_inputs(name, self.inputs, len(labels))
        if isinstance(self.preprocess, Pixels | None):
            inputs = as_images(inputs)
        check_samples(name, inputs, labels)
        if self.vocabulary is not None:
            check_tokens(name, inputs, self.vocabulary)
        fields = {
            "class_names": tuple(self.class_names),
            "labels": labels.astype(np.int32),
            "preprocess": preprocess_of(name, inputs, self.preprocess),
            # views, since the arrays are the caller's, and these become read-only
            "inputs": jax.tree.map(lambda x: x.view(), inputs),
        }
        fields |= self._checked_parts(labels)
        made_in_memory = self.reading is None
        if made_in_memory:
            fields["reading"] = Reading()
        for field, value in fields.items():
            object.__setattr__(self, field, value)  # the dataclass is frozen
        for x in (*jax.tree.leaves(self.inputs), self.labels):
            x.flags.writeable = False
        if made_in_memory:
            for line in self.doubts:
                _LOGGER.warning(f"{name}: {line}")

    def __repr__(self) -> str:
        forms = []
        for x in jax.tree.leaves(self.inputs):
            forms.append(f"{list(x.shape[1:])} {x.dtype}")
        samples = f"{len(self.labels):,} samples of {' and '.join(forms)}"
        return f"<Dataset {self.name}: {samples}; {self.num_classes} classes>"

    def _checked_parts(self, labels: np.ndarray) -> dict[str, Any]:
        """Returns groups, clients and official sets, checked; fields that may be absent."""
        parts: dict[str, Any] = {}
        if self.groups is not None:
            parts["groups"] = checked_groups(self.name, self.groups, labels)
        if self.clients is not None:
            parts["clients"] = checked_partition(self.name, self.clients, len(labels))
        if self.public is not None:
            sets = {"public": self.public}
            parts |= checked_sets(self.name, sets, len(labels))
        if self.official:
            parts["official"] = checked_sets(f"{self.name}: official", self.official, len(labels))
        return parts

    @property
    def doubts(self) -> tuple[str, ...]:
        """Lines on labels and images that look wrong, though they can be trained on."""
        lines = label_doubts(self.labels, self.class_names)
        if isinstance(self.preprocess, Pixels):
            lines += byte_doubts(self.inputs)
        return lines

    @property
    def public_set(self) -> PublicSet | None:
        """The size of the public set, None without."""
        if self.public is None:
            return None
        return PublicSet(len(self.public), self.public_is_labelled)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    @with_standard_numerics
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
        name: str = "frame",
    ) -> "Dataset":
        """Returns the set of a frame of pandas, Polars or any library that Arrow reads, with the
        checks that a table in a file has.

        Rows of numbers are standardised by the training samples, columns of text are tokens, and
        one column may hold arrays of one shape. The index is no column.

        Args:
          frame: the frame.
          label: column of the labels; None for a usual name.
          features: columns of the samples, () for all others, "-NAME" for all others but some.
          group: column of the person or place that a sample is from; None for a usual name.
          split: column that says train, val or test: the official sets; None for none.
          client: column of the client that holds a sample, in the set that `split` says.
          text_length: tokens to which texts are cut or padded; None for 200.
          tokenizer: tokenizer of texts, a tokenizer.json or a folder with one or with vocab.txt,
            which needs the package `tokenizers`; None for words of the training texts.
          name: the set's name.

        Raises:
          ValueError: a value is missing, or a column is not what it is taken for. One line.

        Examples:
          >>> import pandas as pd  # doctest: +SKIP
          >>> frame = pd.read_excel("patients.xlsx")  # doctest: +SKIP
          >>> dataset = fl.Dataset.from_pandas(frame, "outcome", group="site")  # doctest: +SKIP
        """
        return _readers().from_frame(
            frame,
            split=split,
            client=client,
            name=name,
            label=label,
            features=features,
            group=group,
            text_length=text_length,
            tokenizer=tokenizer,
        )

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
        name: str | None = None,
    ) -> "Dataset":
        """Returns the set of a `datasets.Dataset` of Hugging Face, of a dict of them by set, or of
        the folder that `save_to_disk` wrote; nothing is downloaded.

        Args:
          dataset: the data set, a DatasetDict, or a path, which needs the package `datasets`.
          label: column of the labels; those of a ClassLabel have its names. This and the other
            arguments are as of `from_pandas`.
          image_size: height and width in pixels to resize images to.

        Raises:
          ValueError, FileNotFoundError: as of `from_pandas`, or there is no such folder. One line.
          ImportError: a path is given, and `datasets` is not installed. One line.
        """
        return _readers().from_hugging_face(
            dataset,
            split=split,
            client=client,
            name=name,
            label=label,
            features=features,
            group=group,
            image_size=image_size,
            text_length=text_length,
            tokenizer=tokenizer,
        )

    @classmethod
    def from_torch(
        cls, dataset: Any, class_names: Sequence[str] | None = None, *, name: str = "torch"
    ) -> "Dataset":
        """Returns the set of a map-style `torch.utils.data.Dataset`, each of whose items is a pair
        of a sample and its label. It is read once, and kept as NumPy arrays.

        Images, [C, H, W] or [H, W, C], are kept as bytes where they have the 256 steps of them.

        Args:
          dataset: an object with a length and items by index.
          class_names: names of the classes; None for the dataset's own (its attribute
            `classes`), else numbers.
          name: the set's name.

        Raises:
          ValueError: an item is no such pair, or differs when it is read again. One line.
        """
        return _readers().from_torch(dataset, class_names, name)
