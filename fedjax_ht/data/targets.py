"""Data sets for tasks other than classification: regression, multi-label, and masks.

Partitions need labels. The labels of such a set are groups of similar targets, so that every
partition works, e.g. with Dirichlet shares of quantiles of a target, or of the rarest label or
class of a sample. Partitions skip empty groups, such as a background that all images have.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from fedjax_ht.check.options import FLOAT, Count, Within, checked
from fedjax_ht.core.inputs import described, is_image
from fedjax_ht.core.task import CLASSIFICATION, Task, multi_label, per_pixel, regression
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import all_of

MOST_OFFSET = 1e5
"""Times the deviation: float32 rounds targets so far from 0 to a hundredth of their deviation."""
_UNMARKED = "no label"  # name of the class of samples without a label


@checked
def regression_dataset(
    name: str, inputs: Any, targets: Any, *, bins: Count = 10, **fields: Any
) -> Dataset:
    """Makes a data set with numbers to predict.

    Training uses targets in standard units. Mean and deviation come from all targets of the set, or
    from a split's training samples, see `standardised_targets`. All clients know these two numbers
    per column. Metrics are in the targets' own units.

    Args:
      name: the set's name.
      inputs: the samples, as in `Dataset`.
      targets: float [N] or [N, D].
      bins: number of equally large groups by the first target, which partitions use as classes.
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
    numbers = as_array(f"{name}: targets", targets)
    if numbers.dtype.kind not in "iubf":
        raise ValueError(f"{name}: targets are {numbers.dtype}; give numbers, [N] or [N, D]")
    columns = numbers.astype(np.float64)
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
    """Returns the set with the mean and deviation of its training samples' targets.

    Make the federation with the task of this set. Experiments do so automatically.

    Args:
      dataset: any set; sets for other tasks than regression are returned unchanged.
      *partitions: one or more splits, whose training samples are pooled.

    Raises:
      ValueError: there are no training samples, or all training targets of a column are equal. One
        line.
    """
    if dataset.task.name != "regression":
        return dataset
    train = all_of(tuple(itertools.chain(*partitions)))["train"]
    if not len(train):
        raise ValueError(
            f"{dataset.name}: the split has no training samples, whose targets set the units; give "
            "clients some"
        )
    known = np.asarray(dataset.targets, np.float64)[train]
    return dataclasses.replace(dataset, task=_task_of(dataset.name, known))


def _task_of(name: str, columns: np.ndarray) -> Task:
    centre, scale = columns.mean(0), columns.std(0)
    # the deviation of equal numbers may be above 0 by rounding
    equal = np.flatnonzero((columns.min(0) == columns.max(0)) | (scale == 0))
    if len(equal):
        raise ValueError(
            f"{name}: all targets of column {equal[0]} are {centre[equal[0]]:g}; remove it"
        )
    far = np.flatnonzero(np.abs(centre) > MOST_OFFSET * scale)
    if len(far):
        warnings.warn(
            f"{name}: targets of column {far[0]} are {centre[far[0]]:.4g} +- {scale[far[0]]:.4g}, "
            "and float32 lacks the digits of their differences; subtract a constant",
            stacklevel=3,
        )
    return regression(tuple(centre.tolist()), tuple(scale.tolist()))


def _quantiles(values: np.ndarray, bins: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns each value's group, with equal sizes except for ties, and the groups' names.

    If many values are the smallest one, such as 0, they are a group.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    edges = np.where(edges == values.min(), np.nextafter(values.min(), np.inf), edges)
    groups, labels = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    return labels, tuple(f"quantile {i + 1}" for i in range(len(groups)))


@checked
def multi_label_dataset(
    name: str, inputs: Any, targets: Any, label_names: Sequence[str] = (), **fields: Any
) -> Dataset:
    """Makes a data set whose samples have any number of labels.

    Partitions use a sample's rarest label as its class, or "no label".

    Args:
      name: the set's name.
      inputs: the samples, as in `Dataset`.
      targets: [N, L] of 0 and 1, 1 if a sample has a label.
      label_names: names of the labels; () for their numbers.
      **fields: other fields of `Dataset`.

    Raises:
      ValueError: targets have other values, no sample has a label, or the number of names is wrong.
        One line.

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
        (*names, _UNMARKED),
        targets=marks,
        task=multi_label(num_labels),
        **fields,
    )


@checked
def per_pixel_dataset(
    name: str,
    inputs: Any,
    masks: Any,
    class_names: Sequence[str] = (),
    *,
    ignored: Annotated[int, Within(0, 255)] = 255,
    **fields: Any,
) -> Dataset:
    """Makes a set of images with a class for each pixel.

    Partitions use the class among an image's pixels that is rarest in the set as its class.

    Args:
      name: the set's name.
      inputs: images, as in `Dataset`.
      masks: integers [N, H, W], the class of each pixel.
      class_names: names of the classes; () for their numbers.
      ignored: the value of unlabelled pixels, which the loss and the scores leave out.
      **fields: other fields of `Dataset`, such as `groups`.

    Raises:
      ValueError: masks and images differ in size, masks have fewer than two classes or values
        without a class, or an image has no labelled pixel. One line.

    Example:
      >>> images = np.zeros((2, 4, 4, 3), np.uint8)
      >>> masks = np.zeros((2, 4, 4), np.uint8)
      >>> masks[1, 1:] = 1
      >>> dataset = fl.per_pixel_dataset("road", images, masks, ("ground", "road"))
      >>> dataset
      <Dataset road: 2 samples of [4, 4, 3] uint8; 32 outputs, per-pixel>
      >>> dataset.labels.tolist()
      [0, 1]
    """
    targets = as_array("masks", masks)
    if targets.ndim != 3 or not targets.size or targets.dtype.kind not in "iub":
        raise ValueError(
            f"{name}: masks are {list(targets.shape)} {targets.dtype}; give whole numbers [N, H, W]"
        )
    known = targets != ignored
    values = np.unique(targets[known])
    most = len(class_names) or int(values.max(initial=0)) + 1
    if len(values) and not 0 <= values[0] <= values[-1] < min(most, 256):
        raise ValueError(
            f"{name}: masks run from {values[0]} to {values[-1]} for {most} classes; number the "
            f"classes from 0, and label pixels without a class {ignored}"
        )
    if len(values) < 2:
        raise ValueError(
            f"{name}: masks have {'one class' if len(values) else 'no class'} besides unlabelled "
            f"pixels, {ignored}; number the classes 0, 1, ..."
        )
    if not (labelled := known.any((1, 2))).all():
        raise ValueError(
            f"{name}: {np.sum(~labelled)} images have no labelled pixel, first image "
            f"{np.argmin(labelled)}; drop them"
        )
    # class by class: a one-hot array would take `most` times the memory of the masks
    counts = np.stack([np.sum((targets == i) & known, (1, 2)) for i in range(most)], 1)
    dataset = Dataset(
        name,
        inputs,
        np.argmin(np.where(counts > 0, counts.sum(0), targets.size + 1), 1),
        tuple(class_names) or tuple(map(str, range(most))),
        targets=targets,
        task=per_pixel(*targets.shape[1:], most, ignored),
        **fields,
    )
    size = dataset.input_shape
    if not is_image(size) or size[:2] != targets.shape[1:]:
        raise ValueError(
            f"{name}: masks are {list(targets.shape[1:])} pixels, but a sample is "
            f"{described(size)}; give images and masks of the same size"
        )
    return dataset


def output_names(dataset: Dataset) -> tuple[str, ...]:
    """Returns the names of a model's outputs in their order; () if they have none.

    These are the classes, or the labels of a multi-label task. Per-pixel outputs are the classes
    once for each pixel. Numbers to predict have no names.
    """
    names, task = dataset.class_names, dataset.task
    if task == CLASSIFICATION:
        return names
    if task.name == "multi-label" and names[dataset.num_outputs :] == (_UNMARKED,):
        return names[:-1]
    if task.name == "per-pixel" and len(names) * math.prod(task.target[0]) == dataset.num_outputs:
        return names
    return ()
