"""Writes files that are either the old or the new one, never half of either."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def atomic_open(path: Path | str, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file beside `path`, and renames it into place at the end of the block.

    It is removed if the block ends with an error.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    try:
        with os.fdopen(handle, mode, encoding=encoding, newline=newline) as file:
            yield file
        # mkstemp lets nobody else read; the permissions of any new file need the umask, which can
        # only be read by setting it
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
