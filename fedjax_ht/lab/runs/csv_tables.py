"""Reads the CSV files that a config names: a row for each client, or for each span of rounds."""

import csv
from collections.abc import Sequence

import numpy as np

from fedjax_ht.check.names import unknown

RULES = {True: "a whole number from 0 on", False: "a number above 0"}


def read_table(
    field: str, path: str, columns: Sequence[str], num_clients: int
) -> dict[str, np.ndarray]:
    """Reads a file with one row for each client.

    Args:
      field: the config's field, for messages.
      path: path of the file.
      columns: names that it may have, besides "client".
      num_clients: number of clients in the federation.

    Returns:
      Those of the columns that the file has, float64 [num_clients] each, by client.

    Raises:
      ValueError: as of `read_rows`, or a client has no row or two. One line.
    """
    table = read_rows(field, path, ("client",), columns)
    clients = table.pop("client")
    expected = np.arange(num_clients)
    if len(clients) != num_clients or not np.array_equal(np.sort(clients), expected):
        lacking = sorted(set(expected.tolist()) - set(clients.astype(int).tolist()))
        wrong = f"it has {len(clients)} rows"
        if lacking:
            wrong = f"it has no row of client {lacking[0]}"
        raise ValueError(
            f"{field}: {path}: {wrong}; it must have one for each client, 0 to {num_clients - 1}"
        )
    return {name: values[np.argsort(clients)] for name, values in table.items()}


def read_rows(
    field: str, path: str, whole: Sequence[str], positive: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads the columns of a CSV file with a header, float64 [rows] each.

    Args:
      field: the config's field, for messages.
      path: path of the file.
      whole: columns that the file must have, of whole numbers from 0 on.
      positive: columns that it may have, of numbers above 0.

    Raises:
      ValueError: the file cannot be read, or has another column, or something else in one. One
        line.
    """
    header, *rows = _lines(field, path)
    place, names = f"{field}: {path}:", list(map(str.strip, header))
    for name in names:
        if name not in (*whole, *positive):
            raise ValueError(f"{place} {unknown('column', name, (*whole, *positive))}")
    for name in whole:
        if names.count(name) != 1:
            raise ValueError(f"{place} its first line must have one column {name!r}")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"{place} row {number} has {len(row)} values, not {len(names)}")
        for name, text in zip(names, row):
            value = _number(text, name in whole)
            if value is None:
                rule = RULES[name in whole]
                raise ValueError(
                    f"{place} {name} of row {number} is {text.strip()!r}; it must be {rule}"
                )
            columns[name].append(value)
    return {name: np.array(values, np.float64) for name, values in columns.items()}


def _lines(field: str, path: str) -> list[list[str]]:
    """Returns the lines that are not empty, the header first; at least one, without a header []."""
    try:
        # utf-8-sig: spreadsheets begin their files with a byte order mark
        with open(path, newline="", encoding="utf-8-sig") as file:
            return [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or "it is no CSV file"
        raise ValueError(f"{field}: {path} cannot be read ({why})") from None


def _number(text: str, whole: bool) -> float | None:
    """Returns a cell's number, None where it is none or out of range."""
    try:
        value = float(text)
    except ValueError:
        return None
    if whole and not (value.is_integer() and value < 2**31):
        return None
    is_positive = value > 0 or (whole and value == 0)
    return value if is_positive and value < np.inf else None
