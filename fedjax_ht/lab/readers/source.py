"""Declarations of data sets, and the sums that their publishers give."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.lab.readers.raw import Raw
from fedjax_ht.lab.safe.archive import Origin
from fedjax_ht.lab.safe.bounded import open_regular


class Moments(NamedTuple):
    """Mean and standard deviation of pixels in [0, 1], a number for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR100_MOMENTS = Moments(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
IMAGENET_MOMENTS = Moments(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
SHIPPED = Path(__file__).parent / "shipped"
"""The folder of the sets that come inside the package."""

IN_PACKAGE = "it is part of the package, and nothing is to be downloaded"


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set that `load_dataset` reads, or a kind of them.

    Attributes:
      name: the set's name, such as "cifar10"; of a kind, a prefix and the kind of text behind the
        colon, such as "npz:PATH".
      about: a description of the set in one line, or the reason why it has no address.
      read: the reader, (data_dir, options) -> Raw; of a kind, (text behind the colon, data_dir,
        options).
      find: a function data_dir -> the files and folders that `read` takes; None where there is no
        publisher.
      place: the file or folder that `read` takes, of a kind, as a function of (text behind the
        colon, data_dir).
      origin: the files that are expected at `place`, for errors.
      home: URL of the folder with the files to download; "" where there is no such address.
      files: sizes in bytes of the files to download into a folder of the set's name, by name.
      md5: file name -> published MD5 sum, of the files to download and of those that they hold; the
        content of a .gz goes by the name without that ending.
      moments: mean and standard deviation of the pixels; None if they are not known.
    """

    name: str
    about: str
    read: Callable[..., Raw]
    find: Callable[[Path | None], Iterable[Path]] | None = None
    place: Callable[[str, Path | None], Path] | None = None
    origin: Origin | None = None
    home: str = ""
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    md5: Mapping[str, str] = dataclasses.field(default_factory=dict)
    moments: Moments | None = None

    def files_of(self, argument: str, data_dir: Path | None) -> tuple[Path, ...]:
        """The files and folders that `read` takes; () where they are not there, or in the package.

        Args:
          argument: the text behind the colon, of a kind.
          data_dir: the folder of the sets.
        """
        if self.place is not None:
            return (self.place(argument, data_dir),)
        if self.find is None:
            return ()
        try:
            return tuple(self.find(data_dir))
        except (ValueError, FileNotFoundError):  # which `read` raises again
            return ()

    @property
    def argument(self) -> str:
        """The kind of text behind the colon; "" for a set."""
        return self.name.partition(":")[2]


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
