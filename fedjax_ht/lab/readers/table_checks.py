"""Refuses tables whose columns are plausibly not what they are taken for.

A column that counts the rows, grows with them, or is the label in other words gives the answer
away; a label with about as many classes as rows is no label.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedjax_ht.core.names import listed
from fedjax_ht.lab.readers.columns import Roles, leave_out

_FEWEST = 10  # rows, or classes, from which a pattern in them is no chance
_CHANCE = 1e-6  # of a column that decides the label though it has nothing to do with it
_INDEX = ("id", "idx", "index", "no", "nr", "number", "row", "key", "uid", "uuid", "sample")
"""Names, in small letters, of columns that number rows where all their values differ."""


def refuse_giveaways(
    roles: Roles, inputs: np.ndarray, labels: np.ndarray, counts: Sequence[int]
) -> tuple[str, ...]:
    """Refuses a table with a feature that counts its rows, grows with them or decides the label.

    Args:
      roles: roles of the columns; features that are named one by one are meant.
      inputs: float64 [N, features].
      labels: the rows' classes, int [N].
      counts: rows of each file, since an index begins anew in each.

    Returns:
      A line for each such feature that is meant.

    Raises:
      ValueError: a feature is one that nobody has named. One line.
    """
    lines = []
    for name, column in zip(roles.features, inputs.T):
        reason = _numbering(name, column)
        if not reason and len(counts) > 1:
            parts = np.split(column, np.cumsum(counts)[:-1])
            in_files = [_numbering(name, part) for part in parts]
            reason = in_files[0] if all(in_files) else ""
        if not reason and len(roles.features) > 1:
            reason = _deciding(column, labels) or _marking(column, labels)
        if reason and not roles.are_named:
            raise ValueError(f"column {name!r} {reason}; {leave_out(name)}")
        if reason:
            lines.append(f"feature {name!r} {reason}")
    return tuple(lines)


def refuse_text_giveaways(
    roles: Roles, cells: Sequence[Sequence[str]], labels: np.ndarray
) -> tuple[str, ...]:
    """Refuses texts with a column that numbers the rows or is the label in other words.

    Args:
      roles: roles of the columns; without names where the file has no head.
      cells: the columns of text of each row.
      labels: the rows' classes, int [N].

    Returns:
      A line for each such column that is meant.

    Raises:
      ValueError: a column is one that nobody has named. One line.
    """
    lines = []
    for i in range(len(cells[0]) if len(cells[0]) > 1 else 0):
        codes: dict[str, int] = {}
        places = [codes.setdefault(row[i].strip(), len(codes)) for row in cells]
        name = f"column {roles.features[i]!r}" if roles.features else f"column {i + 2} of a row"
        reason = _deciding(np.array(places), labels)
        if len(codes) == len(cells) >= _FEWEST and all(text.isdecimal() for text in codes):
            reason = "has another whole number in every row, as an index or id"
        if reason and not roles.are_named:
            rest = leave_out(roles.features[i]) if roles.features else "take it out of the file"
            raise ValueError(f"{name} {reason}; {rest}")
        if reason:
            lines.append(f"{name} {reason}")
    return tuple(lines)


def class_lines(name: str, labels: np.ndarray, class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns lines on classes that look wrong.

    Args:
      name: the name of the label's column, or "the first column", for the messages.
      labels: the rows' classes, int [N].
      class_names: names of all classes.

    Raises:
      ValueError: there are about as many classes as rows. One line.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    classes, rows = len(class_names), len(labels)
    if classes > _FEWEST and 2 * classes > rows:
        raise ValueError(
            f"{name} has {classes} classes in {rows} rows, such as {listed(class_names, 3)}: name "
            "the column that is the label; numbers to predict (a regression) have to be put into "
            "classes first"
        )
    lines = []
    alone = [class_names[c] for c in np.flatnonzero(counts == 1).tolist()]
    if alone and (classes > _FEWEST or np.median(counts) >= _FEWEST):
        lines.append(
            f"{name} has {len(alone)} of {classes} classes with one sample, such as "
            f"{listed(alone, 3)}"
        )
    folded = Counter(class_name.casefold() for class_name in class_names)
    if twice := [class_name for class_name in class_names if folded[class_name.casefold()] > 1]:
        lines.append(f"{name} has classes that differ by capitals alone: {listed(twice)}")
    return tuple(lines)


def _numbering(name: str, column: np.ndarray) -> str:
    """Says that a column tells the place of a row in its file; or ""."""
    return _counting(name, column) or _growing(column)


def _counting(name: str, column: np.ndarray) -> str:
    """Says that a column numbers the rows: in order, in another order, or by its name; or ""."""
    count = len(column)
    if count < _FEWEST or (column != np.floor(column)).any():
        return ""
    if len(np.unique(column)) < count:
        return ""
    steps = np.unique(np.diff(np.sort(column)))
    low, high = column.min(), column.max()
    parts = name.lower().replace("-", "_").replace(" ", "_").split("_")
    if len(steps) == 1 or set(parts) & set(_INDEX):
        return f"has another whole number in every row, {low:.0f} to {high:.0f}, as an index or id"
    return ""


def _growing(column: np.ndarray) -> str:
    """Says that a column grows, or falls, from row to row; or ""."""
    if len(column) < _FEWEST:
        return ""
    steps = np.diff(column)
    if (steps > 0).all():
        return "grows from row to row, as a time or an index does"
    if (steps < 0).all():
        return "falls from row to row, as a time or an index that counts down does"
    return ""


def _marking(column: np.ndarray, labels: np.ndarray) -> str:
    """Says that a column marks one class, beyond chance; or ""."""
    is_high, is_low = column == column.max(), column == column.min()
    if not (is_high ^ is_low).all():
        return ""
    for label, count in zip(*np.unique(labels, return_counts=True)):
        is_label = labels == label
        if np.array_equal(is_high, is_label) or np.array_equal(is_low, is_label):
            # as many rows drawn from all would be those of the class so often
            chance = 1 / math.comb(len(labels), int(count))
            if chance < _CHANCE:
                return "has one value where the label is one class, and another everywhere else"
    return ""


def _deciding(column: np.ndarray, labels: np.ndarray) -> str:
    """Says that equal values of a column always have the same label, beyond chance; or ""."""
    order = np.argsort(column, kind="stable")  # once: of many rows this takes the time
    ordered, column = labels[order], column[order]
    again = column[1:] == column[:-1]
    if not again.any() or (ordered[1:] != ordered[:-1])[again].any():
        return ""
    classes = np.unique(labels)
    # Two rows at random have the same label so often; as many pairs agree here.
    same = np.square(np.bincount(labels) / len(labels)).sum()
    if len(classes) < 2 or np.count_nonzero(again) * np.log(same) > np.log(_CHANCE):
        return ""
    count = 1 + np.count_nonzero(~again)
    is_other_name = count == len(classes)
    is_whole = bool((column == np.floor(column)).all())
    # Measured values may part classes as well; whole numbers with few values are codes or owners.
    if not is_other_name and not (is_whole and 4 * count <= len(labels)):
        return ""
    return f"decides the label: each of its {count} values has rows of one class alone"
