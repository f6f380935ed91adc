"""Opens files for writing: whole or not at all, and never through a link. Makes CSV text.

Every file that a run writes in its folder is opened here. The folder may have come from elsewhere,
with links in it to files of whoever looks at it.
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
"""Errors that say nothing about a file: the process or the machine had too much open, or was
interrupted. The same call may succeed a little later."""


@contextlib.contextmanager
def atomic_open(path: Path | str, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`, and renames it into place at the end of the block.

    It is removed if the block ends with an error. Its content is on disk before it has its name, so
    that a power failure leaves the file of before or the new one.

    Raises:
      OSError: it cannot be written; it names `path`, or the temporary file.
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
    """Writes a file as a whole or not at all; errors as of `atomic_open`."""
    with atomic_open(path, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)


def plain_open(path: Path | str, mode: str) -> IO:
    """Opens a file itself, where a half written one does no harm.

    Args:
      path: the path of a regular file, or one where no file is yet.
      mode: "x" for a new file, "a" or "a+" to append to one; with "b" for bytes.

    Raises:
      OSError: it is a link, or with "x" it exists.
      ValueError: it is no regular file. One line.
    """
    if "b" in mode:
        return open(path, mode, opener=_open_regular)
    # UTF-8, and line ends as they are; a name of a file may hold bytes that are no UTF-8, which
    # Python has as lone surrogates
    return open(
        path, mode, encoding="utf-8", errors="backslashreplace", newline="", opener=_open_regular
    )


def _open_regular(path: str, flags: int) -> int:
    # O_NONBLOCK: a pipe that nobody reads would be waited for
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file")
    return handle


@contextlib.contextmanager
def named(path: Path | str) -> Iterator[None]:
    """Gives an OSError of the block the path, if it names none: those of `write` and `fsync` do
    not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def sync_folder(folder: Path) -> None:
    """Asks the system to put the names of a folder's files on disk, after a rename."""
    # the files themselves are in place, and not every file system can sync a folder
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_caused_by(error: BaseException | None, codes: Collection[int]) -> bool:
    """Returns whether an OSError with one of these errnos caused an error, whatever was made of
    it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in codes:
            return True
        error = error.__cause__
    return False


def refuse_links(folder: Path) -> None:
    """Refuses a folder with a symbolic link in it, at any depth; the folder may be one itself.

    A rename or a new file in a linked folder would land where the link points, and what is read
    through a link would become part of a page that is handed on.

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
                    f"{entry.path} is a symbolic link to {os.readlink(entry.path)}, and nothing is "
                    "read or written through links below a run's folder; remove it, or put there "
                    "what it points to"
                )
            elif not entry.is_file():
                raise ValueError(f"{entry.path} is neither a file nor a folder; remove it")


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of what spreadsheets take for a formula; white space before one is skipped."""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Returns rows as CSV, with the line ends of RFC 4180.

    A text that a spreadsheet would compute stands behind a quote; a number stays a number. Names of
    columns and entries may come from elsewhere, such as another's run or a deployment's client.

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
