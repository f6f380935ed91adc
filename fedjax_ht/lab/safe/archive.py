"""Finds files, walks folders and archives alike, and makes one-line errors, for all readers."""

import contextlib
import hashlib
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ht.lab.safe.bounded import read_whole, tar_members, zip_members

_LINE = 300  # characters: a file may hold a name of any length


class Origin(NamedTuple):
    """The files that a reader expects, as its errors name them.

    Attributes:
      expected: the files by name, as a phrase.
      how: the way to get them.
      fetched: True if `download.get` knows where they are.
      names: names of a publisher's file or folder, the first that exists counts.
      folders: folders of the data folder that may hold it, "" for itself; () for that of the set's
        name, and then itself.
      markers: paths by which a folder of any other name is known.
    """

    expected: str
    how: str
    fetched: bool = True
    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()


def search(name: str, data_dir: Path | None, origin: Origin) -> Path:
    """The file or folder of a publisher's set in `data_dir`.

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
    for folder in origin.folders or (name, ""):
        for file in (*origin.names, *origin.markers):
            path = data_dir / folder / file
            if path.exists():
                return path.parents[file.count("/")] if file in origin.markers else path
    raise FileNotFoundError(f"{name}: not found in {data_dir}; expected {origin.expected}; {how}")


def fetch(name: str, data_dir: Path) -> str:
    """The command that downloads a set (`download.get`)."""
    return f"`fedjax-ht data get {name} --data_dir={shlex.quote(str(data_dir))}`"


def user_path(path: str, data_dir: Path | None) -> Path:
    """The path that a user wrote after a prefix: of the current folder, else below `data_dir`.

    "." is `data_dir` itself.
    """
    here = Path(path).expanduser()
    if data_dir is None or (here.name and here.exists()):
        return here.absolute()
    return data_dir / here


def two_places(path: str, data_dir: Path | None) -> str:
    """A line on a path that is in the current folder and below `data_dir`, "" for any other."""
    here = Path(path).expanduser()
    if data_dir is None or not here.name or not here.exists() or not (data_dir / here).exists():
        return ""
    if here.samefile(data_dir / here):
        return ""
    return f"{here.absolute()} is read, of the current folder; {data_dir / here} is there, too"


def printable(name: str) -> str:
    """A file's name as UTF-8 text, whatever the locale is; other bytes as backslash and number."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # of a locale that no file could have the name in
        return name


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
        if getattr(error, "names_its_file", False):  # one in the folder `path`
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        line = str(text).partition("\n")[0].rstrip(":")[:_LINE] or type(error).__name__
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        # the system's, not a reader's own
        if isinstance(error, FileNotFoundError) and error.errno:
            line += "; it was looked for in the current folder and below data_dir"
        named: Any = kind(f"{path}: {line}; expected {origin.expected}, {origin.how}")
        named.names_its_file = True
        raise named from error


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below `folder` in sorted order.

    Links are followed; hidden files and folders are left out.

    Raises:
      ValueError: a link leads to a folder that it is in.
    """
    for parent, _, files in _walk(folder):
        for file in files:
            yield Path(parent, file)


def _raise(error: OSError) -> None:
    """Ends a walk at a folder that cannot be listed, which os.walk would leave out."""
    raise error


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields (path, folders, files) of a folder and of all below, as os.walk, but sorted."""
    for parent, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        # in place: os.walk goes into the folders of this list, in its order
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            path = Path(parent, name)
            # without end: os.walk would go round until the path is too long
            if path.is_symlink() and Path(parent).resolve().is_relative_to(path.resolve()):
                raise ValueError(f"{path} is a link to a folder that it is in; take it away")
        yield parent, folders, sorted(name for name in files if not name.startswith("."))


def listing(folder: Path) -> tuple[list[str], list[str]]:
    """The files and the folders below a folder in sorted order, relative, "/" between folders.

    Links are followed; hidden files and folders are left out.
    """
    files, folders = [], []
    for parent, inner_folders, inner_files in _walk(folder):
        above = Path(parent).relative_to(folder)
        folders += [(above / name).as_posix() for name in inner_folders]
        files += [(above / name).as_posix() for name in inner_files]
    return files, folders


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


_TICK = 20_000_000  # nanoseconds: more than the steps in which a file system counts time


def stamp_of(sources: Iterable[Path]) -> str:
    """Returns a stamp of files and of all files below folders; another one after any change.

    Size and time do not tell: tar, cp -p and rsync -t give a file the time that its source had. So
    the inode, which another file has, and the time of the change itself, which no program can set,
    belong to it. What is not there has a stamp, too.
    """
    digest, newest = hashlib.sha256(), 0
    for source in sources:
        for path in files_below(source) if source.is_dir() else (source,):
            digest.update(str(path).encode("utf-8", "surrogatepass"))
            try:
                stat = path.stat()
            except OSError:  # a link that leads nowhere: whoever reads it says so
                continue
            state = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
            digest.update(repr(state).encode())
            newest = max(newest, stat.st_ctime_ns)
    if 0 <= time.time_ns() - newest < _TICK:
        time.sleep(_TICK / 1e9)  # so that whatever is written from here on has a later time
    return digest.hexdigest()
