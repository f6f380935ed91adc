"""Checksums of the data and weights of a run, by which a run that goes on knows them again."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.user_code import names_object
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.lab.config.sections import Config


def fingerprints(dataset: Dataset, partitions: Sequence[Partition]) -> dict[str, str]:
    """Returns SHA-256 sums of a run's data: "data" of inputs and labels, "split" of the
    clients' samples in every trial."""
    data, split = hashlib.sha256(), hashlib.sha256()
    for array in (*jax.tree.leaves(dataset.inputs), dataset.labels):
        _add(data, array)
    # trials without a split of their own share one object, which counts once
    for partition in {id(partition): partition for partition in partitions}.values():
        for client in partition:
            for part in client:
                _add(split, np.asarray(part, np.int64))
    return {"data": data.hexdigest(), "split": split.hexdigest()}


def _add(digest, array: np.ndarray) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    # in pieces: the images may be a memory map of a file that is larger than the memory
    for start in range(0, len(array), 4096):
        digest.update(np.ascontiguousarray(array[start : start + 4096]))


def check_data(
    noted: Mapping[str, Any], prints: Mapping[str, str], config: Config, workdir: Path
) -> None:
    """Raises a ValueError where a run that has noted its data was on other data than now."""
    for name, difference in (("data", "other inputs or labels"), ("split", "another split")):
        if name in noted and noted[name] != prints[name]:
            place = config.dataset.name
            if not names_object(place):
                place += f" with dataset.data_dir {config.dataset.data_dir!r}"
            raise ValueError(
                f"{workdir} holds a run on {difference} than {place} has now (SHA-256 "
                f"{noted[name][:12]} there, {prints[name][:12]} here); give it the data that it "
                "began with, or choose another --workdir"
            )


def check_objects(noted: Mapping[str, str], sums: Mapping[str, str], workdir: Path) -> None:
    """Raises a ValueError where an object given from Python is not the one that a run has noted."""
    for name, old, new in _changed(noted, sums):
        raise ValueError(
            f"{workdir} holds a run with another {name} (SHA-256 {old} there, {new} here); give "
            "it the object that it began with, or choose another folder"
        )


def check_weights(noted: Mapping[str, str], sums: Mapping[str, str], workdir: Path) -> None:
    """Raises a ValueError where a file that models start from differs from the one that a run has
    noted; a file that is gone is not asked for again."""
    for file, old, new in _changed(noted, sums):
        raise ValueError(
            f"{workdir} holds a run that began from another {file} (SHA-256 {old} there, {new} "
            "here); give it the file that it began with, or choose another --workdir"
        )


def _changed(noted: Mapping[str, str], sums: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields each name whose checksum is another than noted, and how both begin."""
    for name in noted.keys() & sums.keys():
        if noted[name] != sums[name]:
            yield name, noted[name][:12], sums[name][:12]
