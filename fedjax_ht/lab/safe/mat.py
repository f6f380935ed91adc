"""Reads MATLAB files, which SVHN and Flowers-102 come with."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np

from fedjax_ht.check.packages import needing
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import read_whole

_HEADER, _COMPRESSED = 128, 15  # bytes, and the type of an element; see MathWorks' MAT-File Format
_NUMBERS = {
    "double",
    "single",
    *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)),
}


def load_mat(name: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of numbers of a MATLAB 5 file.

    Raises:
      ImportError: scipy is not installed.
      ValueError: the file is damaged, holds anything but arrays of numbers, or too much of them.
    """
    with needing(f"{name}: reading .mat files"):
        from scipy.io import loadmat, whosmat
    content = bytes(read_whole(path))
    _check_elements(content)
    try:
        # arrays in arrays could be as deep as a file likes
        kinds = {kind for _, _, kind in whosmat(io.BytesIO(content))}
        if not kinds <= _NUMBERS:
            raise ValueError("an array of something else than numbers")
        return loadmat(io.BytesIO(content))
    except Exception as error:  # scipy raises nearly anything on a damaged file
        raise ValueError(f"damaged .mat file ({error})") from error


def _check_elements(content: bytes) -> None:
    """Refuses a file that inflates to too much, or whose sums are wrong; scipy would not see it."""
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(content[124:_HEADER])
    if order is None:
        raise ValueError("not a MATLAB 5 file")
    position, inflated, limit = _HEADER, 0, limits.decompressed(len(content)) + 1
    while position < len(content):
        if len(content) < position + 8:
            raise ValueError("it ends too early")
        kind, count = struct.unpack_from(f"{order}2I", content, position)
        position += 8 + count
        if position > len(content):
            raise ValueError("it ends too early")
        if kind == _COMPRESSED:
            stream = zlib.decompressobj()
            inflated += len(stream.decompress(content[position - count : position], limit))
            limits.keep("decompressed, it", inflated, limit - 1)
            if not stream.eof or stream.unused_data:
                raise ValueError("a compressed array is longer or shorter than it says")
