"""Generators in .npz files: arrays, and one JSON object with their format, their card and what else
is to be known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.core.files import atomic_open
from fedjax_ht.data.files.arrays import opened_npz
from fedjax_ht.generators.base import Card

METADATA = "metadata"  # the entry that holds the JSON object


def write(
    path: Path | str, metadata: Mapping[str, Any], card: Card, arrays: Mapping[str, Any]
) -> None:
    """Writes arrays and metadata (with a "format") uncompressed; the file is replaced as a
    whole."""
    text = json.dumps({**metadata, "card": card._asdict()})
    with atomic_open(path, "wb") as file:
        np.savez(
            file,
            **{METADATA: np.array(text)},
            **{name: np.asarray(array) for name, array in arrays.items()},
        )


def read(path: Path | str, arrays: bool = True) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and, if wanted, the arrays by name. Nothing in the file is executed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or has no such metadata. One line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no generator at {path}")
    try:
        with opened_npz(path) as file:
            metadata = json.loads(str(file[METADATA]))
            values = {name: file[name] for name in file if arrays and name != METADATA}
    # zipfile, zlib, numpy and json each have their own for a damaged file
    except Exception as error:
        raise ValueError(
            f"{path}: not an .npz with an entry {METADATA} that is JSON ({one_line(error)})"
        ) from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), str):
        raise ValueError(f"{path}: its metadata does not say of what format the generator is")
    return metadata, values


def card(metadata: Mapping[str, Any]) -> Card:
    """The card in a generator's metadata."""
    fields = {name: value for name, value in metadata["card"].items() if name in Card._fields}
    return Card(**fields | {"trained_on": tuple(fields.get("trained_on", ()))})


def one_line(error: Exception) -> str:
    """What an exception says, or its first line."""
    said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return (said.splitlines() or [type(error).__name__])[0]
