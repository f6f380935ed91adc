"""What one side has told so far, as numbers in a small file. They outlive the program and never
become less."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedjax_ht.core.files import atomic_open


def add(path: Path, name: str, more: int) -> int:
    """Adds to a number, 0 before it was first added to; what it is then, which is on the disk.

    Raises:
      ValueError, OSError: the file is not what this module writes, or cannot be written. One line.
    """
    return _changed(path, name, lambda before: before + more)


def raise_to(path: Path, name: str, value: float) -> float:
    """Raises a number to a value, if it is less; otherwise as `add`."""
    return _changed(path, name, lambda before: max(before, value))


def _changed(path: Path, name: str, change: Callable):
    with _locked(path):
        numbers = read(path)
        numbers[name] = change(numbers.get(name, 0))
        with atomic_open(path) as file:
            json.dump(numbers, file)
            file.flush()
            os.fsync(file.fileno())
    return numbers[name]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes from changing the file within the block: each would lose what the other
    counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # not every network's file system has locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(path: Path) -> dict[str, float]:
    """The numbers by name, none where there is no file; errors as of `add`."""
    if not path.exists():
        return {}
    try:
        numbers = json.loads(path.read_text())
        if all(isinstance(x, int | float) and x >= 0 for x in numbers.values()):
            return numbers
    except (ValueError, AttributeError):
        pass
    raise ValueError(
        f"{path} does not say how often noise was added; without it nobody knows what was told"
    )
