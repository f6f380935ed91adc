"""Standardises features by the mean and standard deviation of the training samples."""

import dataclasses
import itertools
from typing import Literal

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.core.inputs import AsStored, Standardised, is_image, looks_like_image
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.indices import all_of

Standardise = Literal["auto", "on", "off"]
"""Which sets are standardised.

auto: if the reader decides so, i.e. tables (`csv:PATH`). on: any floats as stored. off: none.
"""

_LARGE = 30  # root mean square of a feature above which it is reported; models expect about 1
_CONSTANT = 2.0**-22  # times the mean: a smaller deviation is float32's rounding
_ROWS = 4096  # samples per partial sum of moments, since a set may be a memory-mapped file


def standardised(dataset: Dataset, *partitions: Partition) -> Dataset:
    """Returns the set with features of mean 0 and standard deviation 1 in its training samples.

    Rows [N, columns] are standardised by column; windows [N, T, ...] by signal, over samples and
    time. A column that is constant in training is only shifted.

    Args:
      dataset: a set with one float array.
      *partitions: one or more splits, whose training samples are pooled. Several trials with
        different splits then see the same features.

    Raises:
      ValueError: the samples are not floats, are images, or have their own preprocessing rule.

    Examples:
      >>> import fedjax_ht as fl
      >>> dataset = fl.load_dataset("har_10persons")
      >>> partition = fl.make_partition("natural", dataset, 10)
      >>> standardised(dataset, partition).preprocess.mean.shape
      (9,)
    """
    refuse_unfit(dataset)
    train = all_of(tuple(itertools.chain(*partitions)))["train"]
    mean, std = _moments(dataset.inputs, train)
    rule = Standardised(mean.astype(np.float32), std.astype(np.float32))
    return dataclasses.replace(dataset, preprocess=rule)


def refuse_unfit(dataset: Dataset) -> None:
    """Checks that a set can be standardised.

    Raises:
      ValueError: the samples are not floats, are images, or have their own preprocessing rule.
    """
    x = dataset.inputs
    is_floats = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim > 1
    if not is_floats or not isinstance(dataset.preprocess, AsStored | Standardised):
        raise ValueError(
            f"{dataset.name} cannot be standardised: its stored samples are not floats; for images "
            "use dataset.normalisation"
        )
    if is_image(x.shape[1:]) and looks_like_image(x.shape[1:3]):  # windows are longer
        raise ValueError(
            f"{dataset.name} cannot be standardised: its samples are images, {list(x.shape[1:])}; "
            "give windows as [N, T, channels], and images as bytes"
        )


def with_scale(dataset: Dataset, kind: Standardise) -> Dataset:
    """Returns the set with or without a `Standardised` rule that is still pending.

    Raises:
      ValueError: "on" for samples that cannot be standardised.
    """
    if kind == "on":
        refuse_unfit(dataset)
        return dataclasses.replace(dataset, preprocess=Standardised())
    if kind == "off" and is_pending(dataset):
        return dataclasses.replace(dataset, preprocess=AsStored())
    return dataset


def is_pending(dataset: Dataset) -> bool:
    """Returns whether a set will be standardised once its training samples are known."""
    return isinstance(dataset.preprocess, Standardised) and dataset.preprocess.mean is None


def completed(dataset: Dataset, partition: Partition) -> Dataset:
    """Returns the set with the moments of a split's training samples if it waits for them."""
    return standardised(dataset, partition) if is_pending(dataset) else dataset


def scale_doubt(dataset: Dataset, partition: Partition) -> str:
    """Returns a warning on features that are too large for models; "" if there are none.

    Args:
      dataset: the data set; other sets than numbers as stored, except token ids, give "".
      partition: the split among clients.
    """
    x = dataset.inputs
    is_array = isinstance(x, np.ndarray) and x.ndim > 1 and dataset.vocabulary is None
    if not is_array or not isinstance(dataset.preprocess, AsStored):
        return ""
    train = np.concatenate([client.train for client in partition])
    if not len(train):
        return ""
    # some thousand evenly spaced samples suffice for the order of magnitude
    mean, std = _moments(x, train[:: 1 + len(train) // _ROWS])
    mean, std = np.ravel(mean), np.ravel(std)
    sizes = np.hypot(mean, std)
    large = np.flatnonzero(sizes > _LARGE)
    if not len(large):
        return ""
    names = dataset.reading.features if dataset.reading else ()
    shown = [f"{names[i] if names else i} ({mean[i]:.3g} +- {std[i]:.3g})" for i in large]
    return (
        f"{dataset.name}: {len(large)} of {len(sizes)} features have a scale unsuitable for "
        f"learning: {listed(shown)}; standardise them: preprocess=fl.Standardised() of the "
        "dataset, or dataset.standardise 'on' in a config; token ids need vocabulary="
    )


def _moments(x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of some samples over all but feature axes, float64."""
    shape = x.shape[2:] if x.ndim > 2 else x.shape[1:]
    if not len(indices):
        return np.zeros(shape), np.ones(shape)
    axes = tuple(range(x.ndim - len(shape)))
    values = len(indices) * (x.shape[1] if x.ndim > 2 else 1)
    parts = np.array_split(np.sort(indices), -(-len(indices) // _ROWS))
    mean = np.sum([x[part].sum(axes, np.float64) for part in parts], 0) / values
    # a second pass: with squares of large numbers, a small spread would be lost to rounding
    squares = np.sum([np.square(x[part] - mean).sum(axes) for part in parts], 0)
    std = np.sqrt(squares / values)
    return mean, np.where(std > _CONSTANT * np.abs(mean), std, 1.0)
