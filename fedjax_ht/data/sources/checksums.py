"""Compares files with the MD5 sums that their publishers give.

The sums are on the sets' own pages (CIFAR, Fashion-MNIST) and in the lists of torchvision and of
other loaders. A file of a publisher's name that is not the publisher's file may be meant so, such
as a part of the set: it is read, with one line.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedjax_ht.data.files.bounded import open_regular


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
    if content is None:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    else:
        digest = hashlib.md5(content, usedforsecurity=False)
    if digest.hexdigest() == expected:
        return ()
    return (
        f"{path}: its MD5 sum is {digest.hexdigest()}, the publisher's file has {expected}; it is "
        "read all the same",
    )
