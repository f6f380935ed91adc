"""Checks the fields of a data set, each in one line, and finds the rule of its inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.annotations import Count, allows
from fedjax_ht.core.bounds import check_value
from fedjax_ht.core.inputs import AsStored, Pixels, Preprocess, channels_first
from fedjax_ht.core.names import kind_of_value
from fedjax_ht.data.conversion import as_groups


def check_kinds(dataset: Any) -> None:
    """Refuses fields of another kind, each in one line."""
    check_value("name", dataset.name, str)
    name, names = dataset.name, dataset.class_names
    if not allows(tuple[str, ...], names):
        raise ValueError(
            f"{name}: class_names is {kind_of_value(names)}; it must be a tuple with one text per "
            "class, such as ('cat', 'dog') or tuple(map(str, range(10)))"
        )
    check_value(f"{name}: preprocess", dataset.preprocess, Callable | None)
    check_value(f"{name}: vocabulary", dataset.vocabulary, Count | None)
    if not isinstance(dataset.official, Mapping):
        raise ValueError(
            f"{name}: official is {kind_of_value(dataset.official)}; it must be a dict, such as "
            '{"train": indices, "test": indices}'
        )


def check_samples(name: str, inputs: Any, labels: np.ndarray) -> None:
    """Refuses inputs that have no sample for a label, or samples without a number."""
    for x in jax.tree.leaves(inputs):
        if labels.shape != x.shape[:1]:
            count = len(x) if x.ndim else "no axis of"
            raise ValueError(f"{name}: {count} samples but labels of shape {labels.shape}")
        if 0 in x.shape[1:]:
            shape = list(x.shape[1:])
            raise ValueError(f"{name}: a sample is {shape}, an array without any number")


def checked_groups(name: str, groups: Any, labels: np.ndarray) -> np.ndarray:
    """The groups as int32 [N]."""
    numbers = as_groups(f"{name}: groups", groups)
    if numbers.shape != labels.shape:
        raise ValueError(f"{name}: groups are {numbers.dtype} {numbers.shape}, not integers [N]")
    return numbers


def check_tokens(name: str, inputs: Any, vocabulary: int) -> None:
    if not isinstance(inputs, np.ndarray) or inputs.ndim != 2 or inputs.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: vocabulary is {vocabulary}, which is for tokens, an integer array [N, length]"
        )
    if inputs.size and not 0 <= inputs.min() <= inputs.max() < vocabulary:
        raise ValueError(
            f"{name}: token ids run from {inputs.min()} to {inputs.max()}; with vocabulary "
            f"{vocabulary} they must be from 0 to {vocabulary - 1}"
        )


def preprocess_of(name: str, inputs: Any, preprocess: Preprocess | Callable | None) -> Preprocess:
    """A set's rule, as a pytree; None gives the one for such inputs."""
    images = isinstance(inputs, np.ndarray) and inputs.ndim == 4
    if images and isinstance(preprocess, Pixels | None) and channels_first(inputs.shape):
        raise ValueError(
            f"{name}: inputs {list(inputs.shape)} look like [N, C, H, W]; images are [N, H, W, C]: "
            "give inputs.transpose(0, 2, 3, 1), or preprocess=fl.AsStored() if they are not images"
        )
    if preprocess is None:
        preprocess = _usual_rule(name, inputs, images)
    if not isinstance(preprocess, Pixels):
        # a function is a leaf, and no pytree yet
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
    """`Pixels` for images of bytes, `AsStored` for all types but bytes."""
    for x in jax.tree.leaves(inputs):
        if x.dtype != np.uint8:
            continue
        if images:
            return Pixels()
        raise ValueError(
            f"{name}: uint8 {list(x.shape)} are neither images, [N, H, W] or [N, H, W, channels], "
            "nor tokens, of another integer type; give preprocess, which says what a model sees of "
            "them"
        )
    return AsStored()


def _by_channel(name: str, field: str, value: Any, channels: int) -> np.ndarray:
    """The mean or standard deviation of each channel, float32 [channels].

    One number serves all.
    """
    values = np.ravel(np.asarray(value, np.float32))
    if len(values) not in (1, channels):
        raise ValueError(f"{name}: {field} has {len(values)} values for {channels} channels")
    return np.repeat(values, channels // len(values))
