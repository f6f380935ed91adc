"""The JSON files of a run's folder, which may come from anybody: read, written, and named in
messages."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.run_lock import is_primary
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import read_whole

MAX_LEVELS = 32
"""Objects and arrays in each other in a JSON file of a run's folder, at most."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a run's folder.

    Raises:
      ValueError: it holds none, or one that is nested too deep. One line.
    """
    try:
        content = json.loads(read_whole(path, limits.TEXT_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not readable as JSON ({error}); choose another --workdir"
        ) from None
    if deeper(content, MAX_LEVELS):  # functions that walk through it are recursive
        raise ValueError(
            f"{path} has values in more than {MAX_LEVELS} levels; choose another --workdir"
        )
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object; choose another --workdir")
    return content


def deeper(value: Any, levels: int) -> bool:
    """Returns True where objects and arrays of JSON are in each other on more than `levels`
    levels."""
    layer = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for part in layer:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        layer = inner
    return bool(layer)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file of a run's folder, in the first process of a run."""
    if is_primary():
        with atomic_open(path) as file:
            json.dump(content, file, indent=2)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns any error from wrong content of a JSON file into one line that names the file."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what a run writes ({type(error).__name__}: {error})"
        ) from error
    except ValueError as error:
        if str(path.parent) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"a.b": 1} for {"a": {"b": 1}}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
