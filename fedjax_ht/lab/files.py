"""Opens files for writing, atomically and never through a link. Makes CSV text.

A run opens all files in its folder for writing here. The folder may come from elsewhere and hold
links to its reader's files.
"""

import contextlib
import csv
import errno
import io
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
"""Errors that say nothing about a file: too many open files, no memory, or an interrupted call. The
same call may succeed later."""


@contextlib.contextmanager
def atomic_open(path: Path | str, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`, and renames it into place at the end of the block.

    It is removed if the block raises. Its content is on disk before the rename, so that a power
    failure leaves either the old file or the new one.

    Raises:
      OSError: it cannot be written; the error names `path`, or the temporary file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with named(path), plain_open(temporary, mode.replace("w", "x")) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_whole(path: Path | str, content: str | bytes) -> None:
    """Writes a file atomically; raises as `atomic_open` does."""
    with atomic_open(path, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)


def plain_open(path: Path | str, mode: str) -> IO:
    """Opens a file directly, for uses in which a half-written file does no harm.

    Args:
      path: the path of a regular file, or of a new one.
      mode: "x" creates a file, "a" and "a+" append to one; with "b" for bytes.

    Raises:
      OSError: it is a link, or with "x" it exists.
      ValueError: it is not a regular file. One line.
    """
    if "b" in mode:
        return open(path, mode, opener=_open_regular)
    # UTF-8, without conversion of line ends. File names may hold bytes that are not UTF-8, which
    # Python represents by lone surrogates.
    return open(
        path, mode, encoding="utf-8", errors="backslashreplace", newline="", opener=_open_regular
    )


def _open_regular(path: str, flags: int) -> int:
    # without O_NONBLOCK, opening a pipe without a reader would block
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file")
    return handle


@contextlib.contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Adds the path to an OSError of the block that names none, as those of `write` and `fsync`."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def sync_folder(folder: Path) -> None:
    """Asks the system to write a folder's entries to disk, after a rename."""
    # the files themselves are in place, and not every file system can sync a folder
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_caused_by(error: BaseException | None, codes: Collection[int]) -> bool:
    """Returns whether an OSError with one of these errnos is the error or among its causes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in codes:
            return True
        error = error.__cause__
    return False


def refuse_links(folder: Path) -> None:
    """Rejects a folder with a symbolic link in it, at any depth; the folder itself may be one.

    A rename or a new file in a linked folder would land at the link's target. Content read through
    a link would end up in a page that is shared.

    Raises:
      ValueError: there is a link, a pipe, a socket or a device. One line.
    """
    pending = [os.fspath(folder)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except FileNotFoundError:  # a process that runs there has just removed it
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.is_symlink():
                raise ValueError(
                    f"{entry.path} is a symbolic link to {os.readlink(entry.path)}, and links in a "
                    "run's folder are never followed; remove it, or replace it with its target"
                )
            elif not entry.is_file():
                raise ValueError(f"{entry.path} is neither a file nor a folder; remove it")


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that make a spreadsheet read a cell as a formula."""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Returns rows as CSV, with the line ends of RFC 4180.

    Text that a spreadsheet would compute gets a leading quote; numbers stay numbers. Names of
    columns and entries may come from elsewhere, e.g. another user's run or a deployed client.

        >>> csv_text([["=1+1", "-1.5", -1.5, "-"]])
        "'=1+1,-1.5,-1.5,-\r\n"
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows([map(_shown, row) for row in rows])
    return text.getvalue()


def _shown(cell: Any) -> Any:
    if not isinstance(cell, str) or len(cell) < 2 or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
