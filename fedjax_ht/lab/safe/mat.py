"""Reads MATLAB files, which SVHN and Flowers-102 come with."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_ht.core.extras import needing
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import open_regular, size_of

# The format is described in MathWorks' "MAT-File Format": a header of 128 bytes, then elements of
# type, size, content.
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = range(6, 16)  # classes of arrays, double to uint64; others hold arrays in arrays
_CHUNK = 1 << 20


def load_mat(name: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of numbers of a MATLAB 5 file.

    Raises:
      ImportError: scipy is not installed.
      ValueError: the file is damaged, holds anything but arrays of numbers, or too much of them.
    """
    with needing(f"{name}: reading .mat files"):
        from scipy.io import loadmat
    with open_regular(path) as file:
        try:
            return loadmat(_inflated(file))
        except Exception as error:  # scipy raises nearly anything on a damaged file
            raise ValueError(f"damaged .mat file ({error})") from error


def _inflated(file: BinaryIO) -> io.BytesIO:
    """Inflates a file.

    scipy would inflate only as far as it reads, and so miss the sums at the ends.
    """
    size = size_of(file)
    header, inflated = file.read(_HEADER), io.BytesIO()
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(header[124:])
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    inflated.write(header)
    limit = limits.decompressed(size)
    while tag := file.read(8):
        kind, count = struct.unpack(f"{order}2I", tag)
        if count > size - file.tell():
            raise ValueError("it ends too early")
        start = inflated.tell()
        if kind == _COMPRESSED:
            for part in _inflate(file, count):
                inflated.write(part)
                limits.keep("decompressed, it", inflated.tell(), limit)
        else:
            inflated.write(tag + file.read(count))
        with inflated.getbuffer() as content:
            _check_element(bytes(content[start : start + 24]), inflated.tell() - start, order)
    inflated.seek(0)
    return inflated


def _inflate(file: BinaryIO, count: int) -> Iterator[bytes]:
    """Yields one compressed element of `count` bytes in parts.

    Its sum is right if it comes to its end.
    """
    stream = zlib.decompressobj()
    while count or stream.unconsumed_tail:
        content = stream.unconsumed_tail or file.read(min(count, _CHUNK))
        count -= 0 if stream.unconsumed_tail else len(content)
        yield stream.decompress(content, _CHUNK)
        if stream.eof:
            break
    if not stream.eof or stream.unused_data or count:
        raise ValueError("a compressed array is longer or shorter than it says")


def _check_element(start: bytes, size: int, order: str) -> None:
    """Refuses anything but one array of numbers.

    The first 24 bytes are two tags, of the matrix and of its flags, and the flags.
    """
    if len(start) < 24:
        raise ValueError("an array is too short")
    kind, count, _, _, flags, _ = struct.unpack(f"{order}6I", start)
    if kind != _MATRIX or count != size - 8:
        raise ValueError("an element is no array")
    if flags & 0xFF not in _NUMBERS:
        raise ValueError("an array of something else than numbers")
