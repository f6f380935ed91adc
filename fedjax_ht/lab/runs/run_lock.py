"""Decides which process writes in a run's folder: one program, and of its processes the first."""

import contextlib
import datetime
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.lab.files import named, plain_open, refuse_links


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
