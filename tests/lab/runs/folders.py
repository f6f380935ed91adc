"""Folders of runs in tests: their contents, changes of their JSON files, and refusals."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).parent / "stored"


@contextlib.contextmanager
def refused(match: str, error: Any = ValueError) -> Iterator[pytest.ExceptionInfo]:
    """Expects an error whose message matches and is one line; yields it as pytest.raises does."""
    with pytest.raises(error, match=match) as raised:
        yield raised
    assert "\n" not in str(raised.value), str(raised.value)


@contextlib.contextmanager
def edited(file: Path) -> Iterator[Any]:
    """Yields the content of a JSON file, and writes it with the changes of the block."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))


def contents(folder: Path) -> dict[Path, bytes]:
    """Returns the bytes of all files below a folder, but of the lock, by their relative paths."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder): path.read_bytes() for path in files}
