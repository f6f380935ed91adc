"""A client's samples in one file, and a federation's split into such files."""

import dataclasses
import itertools
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.core.files import atomic_open
from fedjax_ht.core.inputs import AsStored, Pixels
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.sources import load_dataset


def read_own(
    name: str, data_dir: str, image_size: int | None = None
) -> tuple[Dataset, ClientIndices]:
    """A client's own set, and which of its samples are for what.

    Raises:
      ValueError, OSError: it cannot be read, does not say which samples are for testing, or has
        none. One line.
    """
    dataset = load_dataset(name, data_dir, image_size)
    if not len(dataset.labels):
        raise ValueError(
            f"{name} has no samples; a client needs one at least, to train or to test with"
        )
    if not {"train", "test"} <= set(dataset.official):
        raise ValueError(
            f"{name} does not say what is for training and what for testing; an .npz has "
            "official_test"
        )
    return dataset, ClientIndices(
        *(dataset.official.get(part, np.zeros(0, np.int64)) for part in ClientIndices._fields)
    )


def alone(dataset: Dataset, own: ClientIndices) -> tuple[Dataset, ClientIndices]:
    """One client's samples as a set of its own, training, validation and test samples in the order
    they had."""
    order = np.concatenate(own)
    ends = np.cumsum([0, *map(len, own)])
    parts = ClientIndices(*(np.arange(start, end) for start, end in itertools.pairwise(ends)))
    mine = {
        "inputs": jax.tree.map(lambda x: x[order], dataset.inputs),
        "labels": dataset.labels[order],
    }
    groups = None if dataset.groups is None else dataset.groups[order]
    official = dict(zip(ClientIndices._fields, parts))
    return dataclasses.replace(
        dataset, **mine, groups=groups, official=official, clients=None
    ), parts


def write_own(path: Path, dataset: Dataset, own: ClientIndices) -> None:
    """One client's samples as an .npz that `read_own` reads by "npz:PATH".

    Raises:
      ValueError: a sample is not one array, or the set has a rule of its own for what a model sees.
        One line.
    """
    mine, parts = alone(dataset, own)
    if not isinstance(mine.inputs, np.ndarray) or not isinstance(
        dataset.preprocess, Pixels | AsStored
    ):
        raise ValueError(
            f"{dataset.name} cannot be written for one client: its samples are not one array as "
            "it is"
        )
    key = "images" if isinstance(dataset.preprocess, Pixels) else "inputs"
    arrays = {key: mine.inputs, "labels": mine.labels, "class_names": np.array(dataset.class_names)}
    for part in ("val", "test"):
        arrays[f"official_{part}"] = np.isin(np.arange(len(mine.labels)), getattr(parts, part))
    if dataset.vocabulary is not None:
        arrays["vocabulary"] = np.int64(dataset.vocabulary)
    with atomic_open(path, "wb") as file:
        np.savez_compressed(file, **arrays)
