"""Data sets for tasks other than classification: numbers to predict, and sets of labels.

Partitions deal with labels. The labels of such a set are groups of like targets, so that every
partition works: Dirichlet shares of quantiles of a target, or of a sample's rarest label.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_ht.check.options import FLOAT, Count, checked
from fedjax_ht.core.task import Task, multi_label, regression
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import all_of


@checked
def regression_dataset(
    name: str, inputs: Any, targets: Any, *, bins: Count = 10, **fields: Any
) -> Dataset:
    """Makes a set of samples with numbers to predict.

    Training is on targets in standard units, by the mean and the deviation of all targets of the
    set, or of a split's training samples, see `standardised_targets`: two numbers for each column
    that all clients know. Metrics are in the targets' own units.

    Args:
      name: the set's name.
      inputs: the samples, as of `Dataset`.
      targets: float [N] or [N, D].
      bins: groups of equal size by the first target, which partitions take for classes.
      **fields: other fields of `Dataset`, such as `groups`.

    Raises:
      ValueError: a target is not finite, or a column's targets are all equal. One line.

    Example:
      >>> x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
      >>> dataset = fl.regression_dataset("line", x, 3 * x[:, 0] + 100, bins=4)
      >>> dataset
      <Dataset line: 40 samples of [1] float32; 1 outputs, regression>
      >>> dataset.task.name, dataset.num_outputs, dataset.num_classes
      ('regression', 1, 4)
    """
    columns = as_array("targets", targets).astype(np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    if columns.ndim != 2 or not columns.size or not (np.abs(columns) <= FLOAT).all():
        bad = np.sum(~(np.abs(columns) <= FLOAT))
        raise ValueError(
            f"{name}: targets are {list(columns.shape)}, {bad} of them NaN, infinite or above "
            f"{FLOAT:g}; give finite numbers, [N] or [N, D]"
        )
    return Dataset(
        name,
        inputs,
        *_quantiles(columns[:, 0], bins),
        targets=columns,
        task=_task_of(name, columns),
        **fields,
    )


def standardised_targets(dataset: Dataset, *partitions: Partition) -> Dataset:
    """Returns the set with the mean and the deviation of its training samples' targets.

    Make the federation with the task of this set. Experiments do so by themselves.

    Args:
      dataset: any set; one without numbers to predict is returned as it is.
      *partitions: one or more splits, whose training samples count together.

    Raises:
      ValueError: training samples' targets of a column are all equal. One line.
    """
    if dataset.task.name != "regression":
        return dataset
    train = all_of(tuple(itertools.chain(*partitions)))["train"]
    known = np.asarray(dataset.targets, np.float64)[train]
    return dataclasses.replace(dataset, task=_task_of(dataset.name, known))


def _task_of(name: str, columns: np.ndarray) -> Task:
    centre, scale = columns.mean(0), columns.std(0)
    if not (scale > 0).all():
        raise ValueError(
            f"{name}: all targets of column {int(np.argmin(scale))} are {centre[scale == 0][0]:g}; "
            "leave it out"
        )
    return regression(tuple(centre.tolist()), tuple(scale.tolist()))


def _quantiles(values: np.ndarray, bins: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the group of each value, of equal sizes but for ties, and the groups' names."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    groups, labels = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    return labels, tuple(f"quantile {i + 1}" for i in range(len(groups)))


@checked
def multi_label_dataset(
    name: str, inputs: Any, targets: Any, label_names: Sequence[str] = (), **fields: Any
) -> Dataset:
    """Makes a set of samples that have any number of labels each.

    Partitions take a sample's rarest label for its class, and "no label" for a sample without one.

    Args:
      name: the set's name.
      inputs: the samples, as of `Dataset`.
      targets: [N, L] of 0 and 1, 1 where a sample has a label.
      label_names: names of the labels; () for their numbers.
      **fields: other fields of `Dataset`.

    Raises:
      ValueError: targets are other numbers, or the names are not as many as labels. One line.

    Example:
      >>> targets = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
      >>> dataset = fl.multi_label_dataset("tags", np.eye(4), targets, ("cat", "dog"))
      >>> dataset.task.name, dataset.num_outputs, dataset.class_names
      ('multi-label', 2, ('cat', 'dog', 'no label'))
      >>> dataset.labels.tolist()
      [0, 1, 2, 0]
    """
    marks = as_array("targets", targets)
    if marks.ndim != 2 or not marks.size or not np.isin(marks, (0, 1)).all():
        raise ValueError(
            f"{name}: targets are {list(marks.shape)} {marks.dtype}; give an array [N, L] of 0 and "
            "1, such as scikit-learn's MultiLabelBinarizer makes"
        )
    if not marks.any():
        raise ValueError(f"{name}: no sample has a label; give 1 where a sample has one")
    num_labels = marks.shape[1]
    names = tuple(label_names) or tuple(map(str, range(num_labels)))
    if len(names) != num_labels:
        raise ValueError(f"{name}: label_names has {len(names)} names for {num_labels} labels")
    rarity = np.where(marks > 0, marks.sum(0), len(marks) + 1)
    labels = np.where(marks.any(1), np.argmin(rarity, 1), num_labels)
    return Dataset(
        name,
        inputs,
        labels,
        (*names, "no label"),
        targets=marks,
        task=multi_label(num_labels),
        **fields,
    )
