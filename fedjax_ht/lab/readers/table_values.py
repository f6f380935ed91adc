"""Numbers the labels and groups of tables, which are texts, in the order that they are meant in."""

import array
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.data.conversion import as_groups
from fedjax_ht.lab.safe import limits

_PLAIN = re.compile(r"0|[1-9][0-9]{0,8}")
PADDED = re.compile(r"(?:^|,)\s*[+-]?0\d")
"""Digits behind a zero, in one of several cells with commas between them: a name, often."""


class Texts(NamedTuple):
    """A column of texts, many of them the same.

    Attributes:
      codes: text -> its number in the order of coming.
      places: number of each row's text.
    """

    codes: dict[str, int]
    places: array.array


def append(column: Texts, text: str) -> None:
    """Adds a row's text to a column.

    Raises:
      ValueError: there are more than `limits.CLASSES` different ones.
    """
    column.places.append(column.codes.setdefault(text, len(column.codes)))
    limits.keep("a column", len(column.codes), limits.CLASSES, "classes or groups")


def numbered(name: str, column: Texts) -> tuple[np.ndarray, list[Any]]:
    """Each row's place among the values of a column, int [N], and the values in order.

    Values are whole numbers if all are, else texts: so are digits with leading zeros.

    Raises:
      ValueError: the values are numbers, but not whole.
    """
    texts = list(column.codes)
    values: list[Any] = whole_numbers(name, texts) or texts
    ordered = sorted(set(values))
    place = dict(zip(ordered, range(len(ordered))))
    places = np.array([place[value] for value in values])
    # of each different text, and by `column.places` of each row
    return places[np.frombuffer(column.places, np.int32)], ordered


def group_numbers(name: str, column: Texts) -> tuple[np.ndarray, tuple[str, ...]]:
    """The group of each row, int32 [N], and the names of groups that are no numbers."""
    places, values = numbered(name, column)
    if isinstance(values[0], int):
        return as_groups(name, np.array(values)[places]), ()
    return as_groups(name, places), tuple(map(str, values))


def class_order(texts: Iterable[str]) -> tuple[str, ...]:
    """The different texts in the order of their numbers if all are plain ones, else as text.

    Raises:
      ValueError: there are more than `limits.CLASSES`.
    """
    different = set(texts)
    limits.keep("the set", len(different), limits.CLASSES, "classes")
    if all(_PLAIN.fullmatch(text) for text in different):
        return tuple(sorted(different, key=int))
    return tuple(sorted(different))


def whole_numbers(name: str, texts: Sequence[str]) -> list[int] | None:
    """The whole numbers that texts are, such as "3" or "3.0"; None if some text is none.

    Raises:
      ValueError: all are numbers, and some are not whole.
    """
    if any("_" in text or not text.isascii() or PADDED.match(text) for text in texts):
        return None  # 007 is the name of something, and another one than 7
    try:
        return [int(text) for text in texts]
    except ValueError:
        pass
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    for number in numbers:
        if not number.is_integer():
            raise ValueError(
                f"column {name!r} has {number}; classes and groups are whole numbers or texts"
            )
    return [int(number) for number in numbers]
