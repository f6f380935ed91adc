"""What one side of a deployment sends the other, and its arrays as bytes. Imports no JAX: a process
a message does."""

import io
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

HEADER = 4096
"""Bytes that the header of an .npy may take at most."""


class Envelope(NamedTuple):
    """What one side sends the other.

    Attributes:
      head: what it is about, JSON values.
      arrays: a message, by name, see `messages.pack`; {} for none.
    """

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]


def to_bytes(array: np.ndarray) -> bytes:
    """An array in NumPy's .npy format, bfloat16 as its bits."""
    file = io.BytesIO()
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    npy.write_array(file, np.asarray(bits, order="C"), allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes, dtype: str) -> np.ndarray:
    """The array that `to_bytes` wrote. What its header claims is believed only as far as there are
    bytes for it.

    Args:
      data: the bytes.
      dtype: the name of the array's type.

    Raises:
      ValueError: it is no such array.
    """
    file = io.BytesIO(data)
    try:
        npy.read_magic(file)
        shape, fortran, stored = npy.read_array_header_1_0(file, max_header_size=HEADER)
    except Exception as error:
        raise ValueError(f"no array: {error}") from None
    there, size = len(data) - file.tell(), int(np.prod(shape, dtype=object)) * stored.itemsize
    if fortran or stored.kind not in "biuf" or size != there:
        raise ValueError(f"no array: a header of {stored} {shape} and {there} bytes")
    if dtype not in (stored.name, "bfloat16") or (dtype == "bfloat16" and stored != np.uint16):
        raise ValueError(f"no array: {stored} called {dtype}")
    array = np.frombuffer(data, stored, offset=file.tell()).reshape(shape)
    if dtype == "bfloat16":
        import ml_dtypes

        array = array.view(ml_dtypes.bfloat16)
    return array


def numbers_in(envelope: Envelope) -> int:
    """Bytes of the numbers of a message: payload and metadata as a simulation counts them."""
    return sum(array.nbytes for array in envelope.arrays.values())
