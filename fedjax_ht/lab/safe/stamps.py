"""Stamps of files, by which a set that was read before is known to be the same."""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

from fedjax_ht.lab.safe.archive import files_below

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
