"""Reads text files of numbers, a row a line."""

from collections.abc import Iterator, Sequence

import numpy as np

_WIDEST = 64  # characters of a number with what separates it from the next


def read_table(
    name: str,
    content: bytes,
    columns: int,
    used: Sequence[int] | None = None,
    dtype: type = np.float32,
) -> np.ndarray:
    """Reads a file of numbers with whitespace between them, [rows, columns].

    With `used` the result is [rows, len(used)].

    Args:
      name: the name of the file, for the message.
      content: the content of the file.
      columns: number of columns of its first line. All lines must have as many; where only some are
        `used`, they must have those.
      used: positions of the columns to take; None takes all.
      dtype: the dtype of the result.

    Raises:
      ValueError: another number of columns, no row, or something that is no number.
    """
    first = content[: _WIDEST * columns].split(b"\n", 1)[0].split()
    if len(first) != columns:
        raise ValueError(f"{name}: its first line has {len(first)} numbers, not {columns}")
    try:
        return np.loadtxt(
            _lines(content, _WIDEST * columns), dtype, comments=None, usecols=used, ndmin=2
        )
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).partition(';')[0].rstrip('.')}") from error


def _lines(content: bytes, longest: int) -> Iterator[bytes]:
    """One after another, without a second copy of a large file."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start, start + longest) + 1
        if not end and len(content) - start > longest:
            raise ValueError(f"a line has more than {longest} characters")
        yield bytes(content[start : end or None])
        start = end or len(content)
