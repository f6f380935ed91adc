"""Finds files, walks folders and archives alike, and makes one-line errors, for all readers."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.data.files.bounded import read_whole, tar_members, zip_members

_LINE = 300  # characters: a file may hold a name of any length


class Origin(NamedTuple):
    """The files that a reader expects, as its errors name them.

    Attributes:
      expected: the files.
      how: the way to get them.
      fetched: `download.get` knows where they are.
    """

    expected: str
    how: str
    fetched: bool = True


def search(
    name: str, data_dir: Path | None, folders: Sequence[str], files: Sequence[str], origin: Origin
) -> Path:
    """The first of `files` that exists in one of the `folders` of `data_dir`, "" for itself.

    Raises:
      ValueError: no `data_dir`.
      FileNotFoundError: none of them exists.
    """
    how = (
        f"{fetch(name, data_dir or Path('data'))} downloads it, or {origin.how}"
        if origin.fetched
        else origin.how
    )
    if data_dir is None:
        raise ValueError(
            f"{name}: data_dir is None; give the folder that holds {origin.expected}; {how}"
        )
    for folder in folders:
        for file in files:
            if (data_dir / folder / file).exists():
                return data_dir / folder / file
    raise FileNotFoundError(f"{name}: not found in {data_dir}; expected {origin.expected}; {how}")


def fetch(name: str, data_dir: Path) -> str:
    """The command that downloads a set (`download.get`)."""
    return f"`fedjax-ht data get {name} --data_dir={shlex.quote(str(data_dir))}`"


def user_path(path: str, data_dir: Path | None) -> Path:
    """The path that a user wrote after a prefix: relative to `data_dir` if that is given."""
    return Path(data_dir or ".", Path(path).expanduser())


@contextlib.contextmanager
def reading(path: Path, origin: Origin) -> Iterator[None]:
    """Turns whatever goes wrong while `path` is read into one line that names it.

    Raises:
      FileNotFoundError: a file is not there.
      ValueError: the content is damaged or not what was expected.
    """
    try:
        yield
    except ImportError:
        raise
    # zipfile, tarfile, zlib, numpy and Python's parser each have their own for damage
    except Exception as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        line = str(text).partition("\n")[0].rstrip(":")[:_LINE] or type(error).__name__
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        # the system's, not a reader's own
        if isinstance(error, FileNotFoundError) and error.errno:
            line += "; a path that is not absolute is one below data_dir"
        raise kind(f"{path}: {line}; expected {origin.expected}, {origin.how}") from error


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below `folder` in sorted order.

    Links are followed; hidden files and folders are left out.
    """
    for parent, folders, files in os.walk(folder, followlinks=True):
        # in place: os.walk goes into the folders of this list, in its order
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            if not file.startswith("."):
                yield Path(parent, file)


def members(source: Path, pattern: re.Pattern) -> Iterator[tuple[re.Match, bytes]]:
    """Yields (match, content) of the files of a folder, .zip or .tar(.gz) whose name matches.

    Nothing is extracted to disk. A folder is walked in sorted order, an archive in its order; names
    are relative and have "/" between folders.
    """
    if not source.is_dir():
        walk = zip_members if source.suffix == ".zip" else tar_members
        yield from walk(source, pattern)
        return
    for path in files_below(source):
        if match := pattern.search(path.relative_to(source).as_posix()):
            yield match, read_whole(path)


def take(entries: dict, keys: Sequence, what: str) -> list:
    """Moves all `keys` out of `entries` into a list.

    Raises:
      ValueError: some are missing. The line says how many, and the first of them.
    """
    if missing := [key for key in keys if key not in entries]:
        raise ValueError(f"{len(missing)} of {len(keys)} {what} are missing, such as {missing[0]}")
    return [entries.pop(key) for key in keys]
