"""Describes a loaded data set as a value that a run or a page can show."""

import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.core.inputs import Pixels, Standardised
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.public import private_indices
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.safe.bounded import printable

_STANDARDISED = "each feature standardised by the training samples"
_MOST = 8  # most classes, columns or groups named in a line


@dataclasses.dataclass(frozen=True)
class Description:
    """A data set in numbers and names.

    Attributes:
      name: the set's name as the user gave it.
      path: file or folder that was read; "" for arrays in memory.
      kind: "images", "texts", "windows", "rows" or "samples".
      count: number of samples.
      form: shape and dtype of a stored sample, "28x28x1 uint8"; for several arrays, of each.
      low, high: smallest and largest stored value.
      public: number of public samples, which `classes` and `groups` do not count.
      classes: name of each class, or group of similar targets -> its number of samples.
      grouped: "classes", or "groups of targets" for other tasks.
      label: name of the label column; "" if there is none.
      features: names of the feature columns.
      splits: name of each official set -> its number of samples.
      groups: name of each group (person, hospital, domain or file) -> its number of samples.
      clients: number of clients in a ready-made split; 0 without one.
      scaling: how a model's inputs are scaled, such as "standardised by the training samples".
      left_out: files that are not samples.
      converted: changes made on the way into the arrays, one phrase each.
      warnings: messages about guesses that may be wrong.
    """

    name: str
    path: str
    kind: str
    count: int
    form: str
    low: float
    high: float
    public: int
    classes: dict[str, int]
    grouped: str
    label: str
    features: tuple[str, ...]
    splits: dict[str, int]
    groups: dict[str, int]
    clients: int
    scaling: str
    left_out: tuple[LeftOut, ...]
    converted: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, str]:
        """Two lines: the samples and their origin; classes, sets and skipped files."""
        place = f" from {self.path}" if self.path else ""
        samples = f"{self.count:,} {self.kind} of {self.form}, {self.low:.6g} to {self.high:.6g}"
        first = [f"{self.name}{place}: {samples}"]
        if self.features:
            first.append(f"features {listed(self.features, _MOST)}")
        first += [part for part in (self.scaling, *self.converted) if part]
        plural = "s" if ", " in self.label else ""
        column = f" by column{plural} {self.label!r}" if self.label else ""
        number = f"{len(self.classes)} {self.grouped}"
        if number == "1 classes":
            number = "1 class"
        second = [f"{number}{column}: {_counts(self.classes)}"]
        if self.splits:
            second.append(f"official sets: {_counts(self.splits)}")
        if self.groups:
            second.append(f"{len(self.groups)} groups: {_counts(self.groups)}")
        if self.public:
            second.append(f"{self.public:,} more samples are public")
        if self.clients:
            second.append(f"split over {self.clients} clients already")
        if self.left_out:
            second.append(f"left out: {', '.join(map(str, self.left_out))}")
        return "; ".join(first), "; ".join(second)


def describe(dataset: Dataset) -> Description:
    """Describes a data set: samples, classes, sets, and its reader's record.

    Examples:
      >>> import fedjax_ht as fl
      >>> described = describe(fl.load_dataset("har_10persons"))
      >>> described.count, described.form, described.classes["WALKING"]
      (1039, '128x9 float16', 202)
    """
    reading = dataset.reading or Reading()
    low, high = _range(dataset.inputs)
    private = private_indices(dataset)
    counts = np.bincount(dataset.labels[private], minlength=dataset.num_classes)
    return Description(
        name=printable(dataset.name),
        path=printable(reading.path),
        kind=kind_of(dataset),
        count=len(dataset.labels),
        form=_form(dataset.inputs),
        low=low,
        high=high,
        public=len(dataset.labels) - len(private),
        classes=dict(zip(dataset.class_names, counts.tolist())),
        grouped=grouped_by(dataset),
        label=reading.label,
        features=reading.features,
        splits={name: len(indices) for name, indices in dataset.official.items()},
        groups=_group_counts(dataset, private),
        clients=len(dataset.clients or ()),
        scaling=_STANDARDISED if isinstance(dataset.preprocess, Standardised) else "",
        left_out=reading.left_out,
        converted=reading.converted,
        warnings=(*reading.warnings, *dataset.doubts),
    )


def grouped_by(dataset: Dataset) -> str:
    """Returns what partitions distribute: "classes" or "groups of targets"."""
    return "classes" if dataset.task == CLASSIFICATION else "groups of targets"


def kind_of(dataset: Dataset) -> str:
    """Returns "images", "texts", "windows", "rows" or "samples", by the model's input."""
    if isinstance(getattr(dataset.preprocess, "rule", dataset.preprocess), Pixels):
        return "images"
    if dataset.vocabulary is not None:
        return "texts"
    x = dataset.inputs
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        return "rows" if x.ndim == 2 else "windows"
    return "samples"


def _form(inputs: Any) -> str:
    """Returns the shape and dtype of a sample: "28x28x1 uint8"."""
    forms = []
    for x in jax.tree.leaves(inputs):
        sides = "x".join(map(str, x.shape[1:])) or "one"
        forms.append(f"{sides} {x.dtype}")
    return " and ".join(forms)


def _range(inputs: Any) -> tuple[float, float]:
    """Returns the smallest and largest value of all arrays."""
    arrays = jax.tree.leaves(inputs)
    return min(float(x.min()) for x in arrays), max(float(x.max()) for x in arrays)


def _group_counts(dataset: Dataset, private: np.ndarray) -> dict[str, int]:
    if dataset.groups is None:
        return {}
    numbers, counts = np.unique(dataset.groups[private], return_counts=True)
    names = dict(enumerate(dataset.reading.group_names if dataset.reading else ()))
    groups: dict[str, int] = {}
    for number, count in zip(numbers.tolist(), counts.tolist()):
        name = names.get(number, str(number))
        groups[name] = groups.get(name, 0) + count
    return groups


def _counts(counts: dict[str, int]) -> str:
    """Lists names with their counts; equal counts are given once."""
    names = list(counts)
    if len(names) > 1 and len(set(counts.values())) == 1:
        each = next(iter(counts.values()))
        return f"{listed(names, _MOST)}, of {each:,} each"
    return listed([f"{name} ({count:,})" for name, count in counts.items()], _MOST)
