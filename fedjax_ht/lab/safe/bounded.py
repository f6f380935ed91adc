"""Opens files that nobody vouches for: only regular ones, to a limited size, with their checksums.

gzip, zip and tar files are read to their ends, since their sums stand there. What does not hold
together is an error of whatever kind the standard library has for it; readers turn them into one
line (`archive.reading`).
"""

import contextlib
import gzip
import io
import math
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from fedjax_ht.check.names import short
from fedjax_ht.lab.safe import limits

_CHUNK = 1 << 20


def open_regular(path: Path | str) -> io.BufferedReader:
    """Opens a file to read bytes.

    Raises:
      ValueError: it is a pipe, a device or a socket, which could be waited for without end.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{Path(path).name} is not a regular file")
    return os.fdopen(handle, "rb")


def size_of(file: BinaryIO) -> int:
    """Bytes of a file that can seek."""
    start, end = file.tell(), file.seek(0, io.SEEK_END)
    file.seek(start)
    return end


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a file, decompressed if it is gzip.

    At the end of the block the rest is read, so that a wrong sum of a gzip file is an error
    whatever part of it was asked for.

    Raises:
      ValueError: not a regular file; or gzip of more than `limits.decompressed` bytes.
    """
    with open_regular(path) as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as stream:
            content = _Bounded(stream, limits.decompressed(size_of(file)))
            yield cast(BinaryIO, content)  # nobody does more than read it
            while content.read(_CHUNK):
                pass


class _Bounded:
    """A stream that ends with an error where it becomes too long."""

    def __init__(self, stream: gzip.GzipFile, limit: int):
        self.stream, self.limit, self.taken = stream, limit, 0

    def read(self, size: int) -> bytes:
        content = self.stream.read(min(size, _CHUNK))
        self.taken += len(content)
        limits.keep("decompressed, it", self.taken, self.limit)
        return content


def read_whole(path: Path | str, limit: int | None = None) -> bytearray:
    """Reads a file, decompressed if it is gzip, up to `limit` bytes.

    The limit is `limits.FILE_BYTES` if it is not given.

    Raises:
      ValueError: not a regular file, or one of more bytes.
    """
    with opened(path) as file:
        return _all_of(file, limits.FILE_BYTES if limit is None else limit)


def _all_of(file: IO[bytes], limit: float = math.inf) -> bytearray:
    """Reads in parts, since a decompressor that is asked for everything takes all memory."""
    content = bytearray()
    while chunk := file.read(_CHUNK):
        content += chunk
        limits.keep("it", len(content), limit)
    return content


_MANY = 1 << 16


def _listed(file: BinaryIO) -> int:
    """The number of files that a zip says that it lists, modulo `_MANY`."""
    # the record at the end has 22 bytes and a comment
    file.seek(-min(size_of(file), _MANY + 22), io.SEEK_END)
    content = file.read()
    end = content.rfind(b"PK\x05\x06")
    return int.from_bytes(content[end + 10 : end + 12], "little")


class Zip:
    """The files in a zip file; together they may hold `limits.decompressed` bytes.

    Raises:
      zipfile.BadZipFile: of any kind of damage, such as a name that differs between the archive's
        list and the file.
      ValueError: a way to compress that is neither stored nor deflated, or too many bytes.
    """

    def __init__(self, file: BinaryIO):
        self._archive = zipfile.ZipFile(file)
        self._left = limits.decompressed(size_of(file))
        every = self._archive.infolist()
        if _listed(file) not in (len(every) % _MANY, _MANY - 1):  # the latter of zip64
            raise zipfile.BadZipFile("it does not list as many files as it says")
        for entry in every:
            # others cannot be bounded
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(
                    f"{entry.filename} is compressed in a way that is not read; stored and "
                    "deflated are"
                )
            # compares the names, so that none is lost to a wrong bit
            self._archive.open(entry).close()
        self.entries = {entry.filename: entry for entry in every if not entry.is_dir()}

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """One file. It must be read to its end, and its sum is right then."""
        entry = self._archive.getinfo(name)
        limits.keep(name, entry.file_size, self._left)
        self._left -= entry.file_size
        with self._archive.open(entry) as file:
            yield file
            if file.read(1) or file.tell() != entry.file_size:
                raise ValueError(f"{name} is longer or shorter than it says")

    def read(self, name: str, limit: float | None = None) -> bytearray:
        """The content of one file; `limit` is `limits.FILE_BYTES` if it is not given."""
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
    """The files of a zip whose name `pattern` finds, as (match, content), in its own order."""
    with opened_zip(path) as archive:
        for name in archive.entries:
            if match := pattern.search(name):
                yield match, archive.read(name)


class _Header(tarfile.TarInfo):
    """A tar header that is whole: tarfile takes a damaged one for the end of the archive."""

    # typeshed calls the parameter as the module is called, and knows no EOFHeaderError
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
            # it would keep all headers, in a list that typeshed does not know
            archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
            if member.isreg() and (match := pattern.search(member.name)):
                if member.issparse():
                    raise ValueError(f"{short(member.name)} is sparse; only plain files are read")
                limits.keep(short(member.name), member.size, limits.FILE_BYTES)
                content = archive.extractfile(member)
                assert content is not None  # as of every regular file
                yield match, content.read()
