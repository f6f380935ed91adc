"""Checks labels: whole numbers from 0, of classes that have samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.conversion import as_array

CLASSES = 100_000  # the most of a set; ImageNet-21k has 21,841

_NO_LABEL = 255  # what many sets have for a sample that nobody has labelled


def as_labels(name: str, labels: Any) -> np.ndarray:
    """Returns labels as int64 [N], a copy.

    Args:
      name: the name of the set, for the error.
      labels: an array-like, see `as_array`, [N] or [N, 1], of whole numbers from 0.

    Raises:
      ValueError: they are something else. One line.
    """
    values = as_array(f"{name}: labels", labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind not in "iubf":
        raise ValueError(
            f"{name}: labels are {values.dtype}; they must be integers from 0: "
            "names, labels = np.unique(labels, return_inverse=True) numbers them"
        )
    if values.ndim != 1:
        hint = ""
        if values.ndim == 2:
            hint = "; labels.argmax(1) makes them of a one for the class and zeros"
        raise ValueError(
            f"{name}: labels of shape {values.shape}; they must be one number a sample, [N]{hint}"
        )
    if values.dtype.kind == "f":
        broken = values[~np.isfinite(values) | (values != np.floor(values))]
        if broken.size:
            raise ValueError(
                f"{name}: labels have values such as {broken[0]:g}; they must be whole numbers "
                "from 0"
            )
    if values.size and not 0 <= int(values.min()) <= int(values.max()) < CLASSES:
        raise ValueError(
            f"{name}: labels run from {values.min():g} to {values.max():g}; they must be from 0 to "
            f"{CLASSES - 1:,}"
        )
    return values.astype(np.int64)


def refuse_no_label(name: str, labels: np.ndarray, class_names: Sequence[str]) -> None:
    """Refuses 255 behind labels that count from 0 without it: it marks samples without a label.

    Args:
      name: the name of the set, for the error.
      labels: the samples' classes, int [N].
      class_names: names of all classes; a class 255 that has another name is one.

    Raises:
      ValueError: there are 0 to k, and 255.
    """
    if tuple(class_names[_NO_LABEL : _NO_LABEL + 1]) != (str(_NO_LABEL),):
        return
    values = np.unique(labels)
    rest = values[:-1]
    if not rest.size or values[-1] != _NO_LABEL or rest[-1] == _NO_LABEL - 1:
        return
    if np.array_equal(rest, np.arange(len(rest))):
        count = np.count_nonzero(labels == _NO_LABEL)
        raise ValueError(
            f"{name}: labels are 0 to {rest[-1]} and, {count} times, {_NO_LABEL}, which marks "
            f"samples without a label; leave them out, where labels == {_NO_LABEL}, or number that "
            f"class {len(rest)}"
        )


def label_doubts(labels: np.ndarray, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns a line for classes that have no sample, or for one class that has all.

    Args:
      labels: the samples' classes, int [N], from 0.
      class_names: names of all classes.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    empty = np.flatnonzero(counts == 0).tolist()
    if not counts.sum():
        return ()
    lines = []
    if np.count_nonzero(counts) == 1:
        name = class_names[int(counts.argmax())]
        lines.append(f"all {counts.sum()} samples are of one class, {name}")
    if len(empty):
        names = listed([class_names[c] for c in empty])
        verb = "class" if len(empty) == 1 else "classes"
        text = f"{len(empty)} of {len(class_names)} classes have no sample: {verb} {names}"
        lowest, highest = labels.min(), labels.max()
        if lowest > 0:
            text += (
                f"; labels run from {lowest} to {highest}, so that class 0 has no sample: if they "
                "count from 1, subtract 1 from them"
            )
        lines.append(text)
    return tuple(lines)
