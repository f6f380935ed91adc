"""Reads one column of a table in memory: numbers, text, or arrays."""

import array
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.data.conversion import as_array
from fedjax_ht.lab.readers.images import decode, pixels_of, stack
from fedjax_ht.lab.readers.table_cells import FILL
from fedjax_ht.lab.readers.table_values import Texts, append


def values_of(name: str, column: Any, image_size: int | None = None) -> np.ndarray:
    """A column of features: numbers [N], text as objects [N], or arrays [N, ...].

    What is missing among numbers is NaN. Images are those of Pillow, or their files' content as
    Hugging Face keeps it, {"bytes": ...}; uint8 [N, H, W, C], of `image_size` if it is given.

    Raises:
      ValueError: the column holds something else, or images of several sizes. One line.
    """
    first = next((value for value in column if value is not None), None)
    if hasattr(first, "getbands") or (isinstance(first, Mapping) and "bytes" in first):
        return _images(name, column, image_size)
    x = as_array(f"column {name!r}", column)
    if x.dtype.kind == "b" and x.ndim == 1:
        return x.astype(np.uint8)
    if x.dtype.kind in "biuf":
        return x
    if x.dtype.kind in "UT":
        return x.astype(object)
    if x.dtype.kind == "O" and x.ndim == 1:
        return _of_objects(name, x.tolist())
    raise ValueError(_neither(name, [x.dtype.type.__name__]))


def _of_objects(name: str, values: Sequence[Any]) -> np.ndarray:
    """A column of Python's own objects: text, numbers, or arrays."""
    present = [value for value in values if not is_missing(value)]
    if _all(present, _is_text):
        return _without_gaps(name, values)
    if _all(present, _is_number):
        return np.array([np.nan if is_missing(value) else float(value) for value in values])
    if _all(present, _has_length):
        return as_array(f"column {name!r}", [np.asarray(value) for value in values])
    kinds = sorted({type(value).__name__ for value in present})
    raise ValueError(_neither(name, kinds or ["no values"]))


def _neither(name: str, kinds: Sequence[str]) -> str:
    return (
        f"column {name!r} holds {' and '.join(kinds)}; make it numbers, or text, or leave the "
        "column out"
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    is_decimal = hasattr(value, "as_tuple") and hasattr(value, "quantize")
    return is_decimal or isinstance(value, numbers.Real)


def _has_length(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)


def _all(values: Sequence[Any], test: Callable[[Any], bool]) -> bool:
    """Returns whether there are values, and all pass a test."""
    return len(values) > 0 and all(map(test, values))


def _images(name: str, column: Any, size: int | None) -> np.ndarray:
    images: list[np.ndarray] = []
    rows: Iterable[Any] = column
    for row, image in enumerate(rows):
        content = image.get("bytes") if isinstance(image, Mapping) else None
        place = f"of row {row} in column {name!r}"
        if content is not None:
            images.append(decode(place, content, size, as_shown=True).pixels)
        elif not isinstance(image, Mapping) and hasattr(image, "getbands"):
            images.append(pixels_of(image, size, as_shown=True).pixels)
        else:
            raise ValueError(f"row {row} has no image in column {name!r}; leave out the row")
    if size is None and len({image.shape[:2] for image in images}) > 1:
        raise ValueError(f"column {name!r} has images of several sizes; give image_size=32 or so")
    return stack(images)


def _without_gaps(name: str, values: Sequence[Any]) -> np.ndarray:
    for row, value in enumerate(values):
        if is_missing(value):
            raise ValueError(f"row {row} has no value in column {name!r}; {FILL}")
    cells = np.empty(len(values), object)
    cells[:] = values
    return cells


def is_missing(value: Any) -> bool:
    """Returns whether a cell is None, NaN, or a frame's mark of a missing value."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def texts_of(name: str, column: Any) -> list[str]:
    """The cells of a column of labels or groups as text; whole floats as such, "3.0".

    Raises:
      ValueError: a cell is missing.
    """
    values = as_array(f"column {name!r}", column)
    if values.ndim > 1:
        raise ValueError(
            f"column {name!r} holds arrays {list(values.shape[1:])}; name one with a value a row"
        )
    texts = []
    for row, value in enumerate(values.tolist()):
        text = "" if is_missing(value) else str(value).strip()
        if text.lower() in ("", "nan", "<na>"):
            raise ValueError(f"row {row} has no value in column {name!r}")
        texts.append(text)
    if not texts:
        raise ValueError("it has no rows")
    return texts


def coded(name: str, column: Any) -> Texts:
    """A column of labels or groups with its texts numbered."""
    texts = Texts({}, array.array("i"))
    for text in texts_of(name, column):
        append(texts, text)
    return texts
