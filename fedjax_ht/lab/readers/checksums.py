"""Compares files with the MD5 sums that their publishers give.

The sums are on the sets' own pages (CIFAR, Fashion-MNIST) and in the lists of torchvision and of
other loaders. A file of a publisher's name that is not the publisher's file may be meant so, such
as a part of the set: it is read, with one line.
"""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedjax_ht.lab.safe.bounded import open_regular

# systems that allow MD5 only where it guards against no forger are told so
md5 = functools.partial(hashlib.md5, usedforsecurity=False)


def check_sum(
    sums: Mapping[str, str], path: Path, content: bytes | bytearray | None = None
) -> tuple[str, ...]:
    """Returns a line if the publisher's file of this name has another MD5 sum, else ().

    Args:
      sums: file name -> MD5 sum, as `Source.md5`; files of other names, and folders, pass.
      path: the path of the file.
      content: content of the file if that is in memory already, else None.
    """
    expected = sums.get(path.name)
    if expected is None or path.is_dir():
        return ()
    digest = md5_of_file(path) if content is None else md5(content).hexdigest()
    if digest == expected:
        return ()
    return (
        f"{path}: its MD5 sum is {digest}, the publisher's file has {expected}; it is "
        "read all the same",
    )


def md5_of_file(path: Path) -> str:
    """Returns the MD5 sum of a file, in hexadecimal digits; it is read in parts."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, md5).hexdigest()
