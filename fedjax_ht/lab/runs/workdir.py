"""A run's folder: which process writes in it, one program and of its processes the first; and its
JSON files, which may come from anybody."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.lab.files import atomic_open, named, plain_open, refuse_links
from fedjax_ht.lab.safe import bounded

MAX_LEVELS = 32
"""Objects and arrays in each other in a JSON file of a run's folder, at most."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a run's folder.

    Raises:
      ValueError: it holds none, or one that is nested too deep. One line.
    """
    try:
        content = bounded.read_json(path, dict)
        if deeper(content, MAX_LEVELS):  # functions that walk through it are recursive
            raise ValueError(f"{path} has values in more than {MAX_LEVELS} levels")
    except ValueError as error:
        raise ValueError(f"{error}; choose another --workdir") from None
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


def is_primary() -> bool:
    """Returns True in the process of a run that writes and prints."""
    return jax.process_index() == 0


def agreed(stop: bool) -> bool:
    """Returns True where `stop` is True in any process of a run; each must make this call."""
    if jax.process_count() == 1:
        return stop
    return bool(np.any(multihost_utils.process_allgather(np.array(stop))))


@contextlib.contextmanager
def locked(workdir: Path, warn: Callable[[str], None]) -> Iterator[bool]:
    """Makes a run's folder and holds it for this program within the block.

    The kernel frees the lock when the process ends, however it ends. Yields False for a folder that
    cannot be written to: a finished run is shown from a read-only disk, too.

    Raises:
      ValueError, OSError: another process holds it, it has links in it, or it cannot be made. One
        line.
    """
    writable = not workdir.exists() or os.access(workdir, os.W_OK)
    lock, problem = None, None
    if is_primary() and writable:
        try:
            lock = _lock(workdir, warn)
        except (ValueError, OSError) as error:
            problem = error
    # all processes leave together: the others would wait for the first one's collectives
    if agreed(problem is not None):
        raise problem or ValueError(
            f"the first process cannot use {workdir}; its own message says why"
        )
    with lock or contextlib.nullcontext():
        yield writable


def _lock(workdir: Path, warn: Callable[[str], None]) -> IO[str]:
    workdir.mkdir(parents=True, exist_ok=True)
    refuse_links(workdir)  # before anything is written there
    path = workdir / ".lock"
    with contextlib.ExitStack() as stack:
        stack.enter_context(named(path))
        # "a+": neither "w", which empties the file of the holder, nor "r+", which does not make one
        file = stack.enter_context(plain_open(path, "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise ValueError(
                f"{workdir} is in use by {holder}; wait for it, or choose another --workdir"
            ) from None
        except OSError as error:  # not every network's file system has locks
            warn(
                f"{workdir} cannot be locked ({error.strerror}): make sure that no second process "
                "runs there"
            )
        if os.fstat(file.fileno()).st_nlink == 1:  # else it is the file of another folder, too
            file.truncate(0)
            now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
            file.flush()
        stack.pop_all()  # the caller closes it, and with it gives the lock back
        return file
