"""Reads .npy and .npz files of numbers and text.

Pickles are rejected, sizes must match the header, and every checksum is verified.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_ht.lab.safe.bounded import Zip, open_regular

_CHUNK = 1 << 24


class _Arrays(Mapping):
    """The arrays of an open .npz by name, each read on access."""

    def __init__(self, archive: Zip):
        self._archive = archive
        self._entries = {
            name.removesuffix(".npy"): name for name in archive.entries if name.endswith(".npy")
        }

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        with self._archive.opened(entry) as file:
            return read_npy(file, self._archive.entries[entry].file_size)

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the array
        return name in self._entries

    def __iter__(self):
        return iter(self._entries)

    def __len__(self):
        return len(self._entries)


@contextlib.contextmanager
def opened_npz(path: Path | str) -> Iterator[Mapping[str, np.ndarray]]:
    """Opens an .npz as a mapping of arrays, each read on access; see `read_npy`.

    Raises:
      ValueError: not a regular file, a single array instead of an .npz, or too large.
      zipfile.BadZipFile: damaged.
    """
    with open_regular(path) as file:
        if file.peek(6)[:6] == b"\x93NUMPY":
            raise ValueError("a single array, not an .npz")
        yield _Arrays(Zip(file))


def read_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Reads the array in an .npy file of `size` bytes, to its end.

    Raises:
      ValueError: not an .npy file, anything but plain numbers and text, or another size than its
        header says.
    """
    shape, fortran, dtype = read_npy_header(file)
    if dtype.kind not in "biufcSU" or dtype.itemsize == 0:
        hint = ", which only a pickle holds" if dtype.hasobject else ""
        raise ValueError(f"an array of {dtype}{hint}; expected plain numbers or text")
    count, start = math.prod(shape) * dtype.itemsize, file.tell()
    if min(shape, default=0) < 0 or size - start != count:
        raise ValueError(
            f"{size - start:,} bytes of values, but its header says {dtype} of shape {shape}"
        )
    content = np.empty(count, np.uint8)
    for i in range(0, count, _CHUNK):
        part = content[i : i + _CHUNK]
        part[:] = np.frombuffer(file.read(len(part)), np.uint8)
    return content.view(dtype).reshape(shape, order="F" if fortran else "C")


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Returns shape, whether the first axis varies fastest, and dtype.

    Raises:
      ValueError: not an .npy file, or a version that NumPy writes only for structured arrays.
    """
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f".npy format version {version}; versions (1, 0) and (2, 0) are read")
    try:
        return readers[version](file)
    except ValueError:
        raise
    except Exception as error:  # the header passes Python's tokenizer and NumPy's dtype parser
        raise ValueError(f"damaged .npy header ({type(error).__name__})") from error
