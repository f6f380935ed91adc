"""Reads and writes generators as .npz: arrays, and a JSON object with their format and card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import in_one_line
from fedjax_ht.models.generator import Card

METADATA = "metadata"  # the entry that holds the JSON object


def write(
    path: Path | str, metadata: Mapping[str, Any], card: Card, arrays: Mapping[str, Any]
) -> None:
    """Writes a generator's file, uncompressed and atomically.

    Args:
      path: path of the file.
      metadata: JSON values, with a "format".
      card: the generator's origin.
      arrays: name -> array.
    """
    text = json.dumps({**metadata, "card": card._asdict()})
    entries: dict[str, Any] = {METADATA: np.array(text)}
    for name, array in arrays.items():
        entries[name] = np.asarray(array)
    with atomic_open(path, "wb") as file:
        np.savez(file, **entries)


def read(path: Path | str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads the metadata and the arrays by name. Nothing in the file is executed.

    Args:
      path: path of the file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or has no such metadata. One line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no generator at {path}")
    about = f"{path}: not an .npz with an entry {METADATA} that is JSON"
    with in_one_line(about), opened_npz(path) as file:
        metadata = json.loads(str(file[METADATA]))
        values = {name: file[name] for name in file if name != METADATA}
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), str):
        raise ValueError(f"{path}: its metadata lacks the generator's format")
    return metadata, values


def check(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Rejects arrays with other shapes, or with values that are not finite.

    Raises:
      ValueError, KeyError: an array is wrong or missing. One line.
    """
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is of shape {arrays[name].shape}; expected {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} has non-finite values")


def card(metadata: Mapping[str, Any]) -> Card:
    """Returns the card in a generator's metadata; unknown fields are dropped."""
    fields = {name: value for name, value in metadata["card"].items() if name in Card._fields}
    fields["trained_on"] = tuple(fields.get("trained_on", ()))
    return Card(**fields)
