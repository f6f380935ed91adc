"""Finds and opens untrusted files: only regular ones, of limited size, with verified checksums.

Walks folders and archives alike, and makes one-line errors for all readers. gzip, zip and tar files
are read to their ends, where their checksums are. Damaged content raises whatever error the
standard library has for it; `reading` turns it into one line.
"""

import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import re
import shlex
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar, cast

from fedjax_ht.check.names import short
from fedjax_ht.lab.safe import limits

_CHUNK = 1 << 20


def open_regular(path: Path | str) -> io.BufferedReader:
    """Opens a regular file to read bytes.

    Raises:
      ValueError: it is a pipe, a device or a socket, on which reading could block forever.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{Path(path).name} is not a regular file")
    return os.fdopen(handle, "rb")


def size_of(file: BinaryIO) -> int:
    """Returns the size in bytes of a seekable file."""
    start, end = file.tell(), file.seek(0, io.SEEK_END)
    file.seek(start)
    return end


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a file, decompressed if it is gzip.

    The end of the block reads the rest, so that a wrong gzip checksum is an error even if only a
    part was read.

    Raises:
      ValueError: not a regular file, or gzip of more than `limits.decompressed` bytes.
    """
    with open_regular(path) as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as stream:
            content = _Bounded(stream, limits.decompressed(size_of(file)))
            yield cast(BinaryIO, content)  # callers only read it
            while content.read(_CHUNK):
                pass


class _Bounded:
    """A stream that raises an error when it becomes too long."""

    def __init__(self, stream: gzip.GzipFile, limit: int):
        self.stream, self.limit, self.taken = stream, limit, 0

    def read(self, size: int) -> bytes:
        content = self.stream.read(min(size, _CHUNK))
        self.taken += len(content)
        limits.keep("decompressed, it", self.taken, self.limit)
        return content


def read_whole(path: Path | str, limit: int | None = None) -> bytearray:
    """Reads a file, decompressed if it is gzip, up to `limit` bytes.

    The limit is `limits.FILE_BYTES` if not given.

    Raises:
      ValueError: not a regular file, or larger than the limit.
    """
    with opened(path) as file:
        return _all_of(file, limits.FILE_BYTES if limit is None else limit)


def _all_of(file: IO[bytes], limit: float = math.inf) -> bytearray:
    """Reads in parts: a decompressor that is asked for everything takes all memory."""
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        limits.keep("it", len(content), limit)
    return content


T = TypeVar("T")


def read_json(path: Path, kind: type[T], limit: int = limits.TEXT_BYTES) -> T:
    """Reads a JSON object (dict) or list from a file of at most `limit` bytes.

    Raises:
      ValueError: the file is too large, not a regular file, or not JSON of this kind. One line.
    """
    try:
        value = json.loads(read_whole(path, limit).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error})") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} is not a JSON {'object' if kind is dict else 'list'}")
    return value


_MANY = 1 << 16


def _listed(file: BinaryIO) -> int:
    """Returns the number of files that a zip claims to list, modulo `_MANY`."""
    # the end record has 22 bytes and a comment
    file.seek(-min(size_of(file), _MANY + 22), io.SEEK_END)
    content = file.read()
    end = content.rfind(b"PK\x05\x06")
    return int.from_bytes(content[end + 10 : end + 12], "little")


class Zip:
    """The files in a zip file, which together may hold `limits.decompressed` bytes.

    Raises:
      zipfile.BadZipFile: damage of any kind, such as a name that differs between the archive's list
        and the file.
      ValueError: a compression other than stored or deflated, or too many bytes.
    """

    def __init__(self, file: BinaryIO):
        self._archive = zipfile.ZipFile(file)
        self._left = limits.decompressed(size_of(file))
        every = self._archive.infolist()
        if _listed(file) not in (len(every) % _MANY, _MANY - 1):  # the latter in zip64
            raise zipfile.BadZipFile("it lists fewer or more files than it declares")
        for entry in every:
            # the output of other methods cannot be bounded
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(
                    f"{entry.filename} has an unsupported compression; only stored and "
                    "deflated are read"
                )
            # compares the names, so that a flipped bit loses none
            self._archive.open(entry).close()
        self.entries = {entry.filename: entry for entry in every if not entry.is_dir()}

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """Opens one file. It must be read to its end, which verifies its checksum."""
        entry = self._archive.getinfo(name)
        limits.keep(name, entry.file_size, self._left)
        self._left -= entry.file_size
        with self._archive.open(entry) as file:
            yield file
            if file.read(1) or file.tell() != entry.file_size:
                raise ValueError(f"{name} is longer or shorter than declared")

    def read(self, name: str, limit: float | None = None) -> bytearray:
        """Returns the content of one file; `limit` is `limits.FILE_BYTES` by default."""
        size = self._archive.getinfo(name).file_size
        limits.keep(name, size, limits.FILE_BYTES if limit is None else limit)
        with self.opened(name) as file:
            return _all_of(file)


@contextlib.contextmanager
def opened_zip(path: Path | str) -> Iterator[Zip]:
    """Opens a zip file; see `Zip`."""
    with open_regular(path) as file:
        yield Zip(file)


def zip_members(path: Path, pattern: re.Pattern) -> Iterator[tuple[re.Match, bytes]]:
    """Yields (match, content) of the files of a zip whose name `pattern` finds, in its order."""
    with opened_zip(path) as archive:
        for name in archive.entries:
            if match := pattern.search(name):
                yield match, archive.read(name)


class _Header(tarfile.TarInfo):
    """A checked tar header: tarfile takes a damaged one for the end of the archive."""

    # typeshed names the parameter after the module, and lacks EOFHeaderError
    @classmethod
    def fromtarfile(cls, archive):  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # pyright: ignore[reportAttributeAccessIssue]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a header is damaged or missing ({error})") from error


def tar_members(path: Path, pattern: re.Pattern) -> Iterator[tuple[re.Match, bytes]]:
    """Yields (match, content) of the files of a tar or tar.gz whose name matches, in its order."""
    with opened(path) as file, tarfile.open(fileobj=file, mode="r|", tarinfo=_Header) as archive:
        while (member := archive.next()) is not None:
            # tarfile would keep all headers, in a list that typeshed lacks
            archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
            if member.isreg() and (match := pattern.search(member.name)):
                if member.issparse():
                    raise ValueError(f"{short(member.name)} is sparse; only plain files are read")
                limits.keep(short(member.name), member.size, limits.FILE_BYTES)
                content = archive.extractfile(member)
                assert content is not None  # true for every regular file
                yield match, content.read()


_LINE = 300  # characters of a message, since names may have any length


class Origin(NamedTuple):
    """The files that a reader expects, as its errors name them.

    Attributes:
      expected: phrase that names the files.
      how: how to get them.
      fetched: True if `download.get` knows their addresses.
      names: names of a publisher's file or folder; the first that exists counts.
      folders: folders of the data folder that may hold it, "" for the data folder itself; () for
        the folder of the set's name, and then the data folder.
      markers: paths that identify a folder of any other name.
    """

    expected: str
    how: str
    fetched: bool = True
    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()


def search(name: str, data_dir: Path | None, origin: Origin) -> Path:
    """Returns the file or folder of a publisher's set in `data_dir`.

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
    """Returns the command that downloads a set (`download.get`)."""
    return f"`fedjax-ht data get {name} --data_dir={shlex.quote(str(data_dir))}`"


def user_path(path: str, data_dir: Path | None) -> Path:
    """Returns a user's path after a prefix: in the current folder, or else below `data_dir`.

    "." is `data_dir` itself.
    """
    here = Path(path).expanduser()
    if data_dir is None or (here.name and here.exists()):
        return here.absolute()
    return data_dir / here


def printable(name: str) -> str:
    """Returns a file's name as UTF-8 in any locale; other bytes become backslash escapes."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # in a locale in which no file could have this name
        return name


@contextlib.contextmanager
def reading(path: Path, origin: Origin) -> Iterator[None]:
    """Turns any error while `path` is read into one line that names it.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the content is damaged or not what was expected.
    """
    try:
        yield
    except ImportError:
        raise
    # zipfile, tarfile, zlib, numpy and Python's parser raise different errors for damage
    except Exception as error:
        if getattr(error, "names_its_file", False):  # of a file in the folder `path`
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        line = str(text).partition("\n")[0].rstrip(":")[:_LINE] or type(error).__name__
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        # raised by the system, not by a reader
        if isinstance(error, FileNotFoundError) and error.errno:
            line = "no such file in the current folder or below data_dir"
        named: Any = kind(f"{path}: {line}; expected {origin.expected}, {origin.how}")
        named.names_its_file = True
        raise named from error


@contextlib.contextmanager
def in_one_line(about: str) -> Iterator[None]:
    """Turns any error of the block into a one-line ValueError "ABOUT: REASON".

    zipfile, numpy, json, torch and diffusers each raise their own exceptions for a damaged file,
    and packages written in Rust panic, which is not an Exception.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        message = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        reason = (message.splitlines() or [type(error).__name__])[0][:_LINE]
        raise ValueError(f"{about}: {reason}") from error


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below `folder` in sorted order.

    Links are followed; hidden files and folders are skipped.

    Raises:
      ValueError: a link leads to a folder that contains it.
    """
    for parent, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        # in place: os.walk enters the folders of this list, in its order
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            path = Path(parent, name)
            # os.walk would go round until the path is too long
            if path.is_symlink() and Path(parent).resolve().is_relative_to(path.resolve()):
                raise ValueError(f"{path} is a link to a folder that contains it; remove it")
        for file in sorted(name for name in files if not name.startswith(".")):
            yield Path(parent, file)


def _raise(error: OSError) -> None:
    """Ends a walk at a folder that cannot be listed, which os.walk would skip."""
    raise error


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
      ValueError: some are missing. The message has their number, and the first of them.
    """
    if missing := [key for key in keys if key not in entries]:
        raise ValueError(f"{len(missing)} of {len(keys)} {what} are missing, such as {missing[0]}")
    return [entries.pop(key) for key in keys]


def sha256_of(path: Path | str) -> str:
    """Returns the SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_TICK = 20_000_000  # nanoseconds: more than the resolution of a file system's times


def stamp_of(sources: Iterable[Path]) -> str:
    """Returns a stamp of files, and of all files below folders, that differs after any change.

    Size and modification time are not enough: tar, cp -p and rsync -t copy the source's time. The
    stamp also includes the inode, which another file has, and the change time, which no program can
    set. Missing files have a stamp, too.
    """
    digest, newest = hashlib.sha256(), 0
    for source in sources:
        for path in files_below(source) if source.is_dir() else (source,):
            digest.update(str(path).encode("utf-8", "surrogatepass"))
            try:
                stat = path.stat()
            except OSError:  # a dangling link: whoever reads it reports it
                continue
            state = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
            digest.update(repr(state).encode())
            newest = max(newest, stat.st_ctime_ns)
    if 0 <= time.time_ns() - newest < _TICK:
        time.sleep(_TICK / 1e9)  # so that any later write has a later time
    return digest.hexdigest()
