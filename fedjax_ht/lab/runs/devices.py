"""Builds the clients' simulated devices from `config.devices_profile`.

Also finds the largest model that fits each client's memory.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_ht.check.named_numbers import read_spec
from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import Part, Positive, Within
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.lab.config.sections import DevicesConfig
from fedjax_ht.lab.config.typed import unusual
from fedjax_ht.simulation.profile import Available, Profile, by_chance, by_trace

# A quantity's position selects the generator of its values.
QUANTITIES = ("flops", "up", "down", "memory")
MAX_SIGMA = 10  # of a lognormal, in standard deviations of the logarithm
QUANTITY_FORMS = {
    "": (Positive,),
    "lognormal": (Positive, Annotated[float, Within(0, MAX_SIGMA)]),
}
QUANTITY_RULE = (
    "it must be empty, a number above 0 such as 1e9, or lognormal/MEDIAN/SIGMA with a SIGMA of at "
    f"most {MAX_SIGMA}, such as lognormal/1e9/0.5"
)
TRACE = "csv:"
CELL_RULES = {True: "an integer from 0", False: "a number above 0"}


def make_profile(devices: DevicesConfig, num_clients: int) -> Profile | None:
    """Returns the profile of the clients' devices; None if nothing of a round is simulated.

    Raises:
      ValueError: a field, or a file that it names, is invalid. One line.
    """
    rates = client_values(devices, num_clients)
    rates.pop("memory", None)  # it selects each client's model, and takes no simulated time
    available = availability(devices, num_clients)
    profile = Profile(available, **rates, deadline=devices.deadline, late=devices.late)
    return profile if rates or available else None


def client_values(devices: DevicesConfig, num_clients: int) -> dict[str, np.ndarray]:
    """Returns the simulated `QUANTITIES`, from fields or the file, float64 [num_clients] each.

    Raises:
      ValueError: see `make_profile`.
    """
    values = {}
    if devices.csv is not None:
        values = read_table("devices_profile.csv", devices.csv, QUANTITIES, num_clients)
    for name in QUANTITIES:
        text = getattr(devices, name)
        if text is None:
            continue
        if name in values:
            raise ValueError(
                f"devices_profile.{name} is {text!r}, but {devices.csv} has a column of that name; "
                "remove one of them"
            )
        values[name] = drawn(name, text, num_clients, devices.seed)
    return values


def drawn(name: str, text: str, num_clients: int, seed: int) -> np.ndarray:
    """Returns one quantity of every client, float64 [num_clients]: constant, or drawn once.

    A client's value does not depend on the number of clients.

    Args:
      name: one of `QUANTITIES`.
      text: a number, or lognormal/MEDIAN/SIGMA.
      num_clients: number of values.
      seed: seed of `config.devices_profile`.

    Raises:
      ValueError: `text` has neither form. One line.
    """
    kind, numbers = read_spec(f"devices_profile.{name}", text, QUANTITY_FORMS, QUANTITY_RULE)
    if not kind:
        return np.full(num_clients, float(numbers[0]))
    median, sigma = numbers
    generator = host_generator(seed, Purpose.DEVICES, QUANTITIES.index(name))
    return median * np.exp(sigma * generator.standard_normal(num_clients))


def availability(devices: DevicesConfig, num_clients: int) -> Available | None:
    """Returns which clients are available in which round; None if all always are.

    Raises:
      ValueError: see `make_profile`.
    """
    text = devices.available
    if text is None:
        return None
    if text.startswith(TRACE):
        return _from_trace(text.removeprefix(TRACE), num_clients)
    rule = "it must be empty, a number above 0 and at most 1, or csv:PATH"
    _, (share,) = read_spec("devices_profile.available", text, {"": (Part,)}, rule)
    return by_chance(num_clients, float(share), devices.seed)


def _from_trace(path: str, num_clients: int) -> Available:
    columns = read_rows("devices_profile.available", path, ("client", "first_round", "last_round"))
    # by name: the columns of the file may be in any order
    spans = np.array([columns[name] for name in ("client", "first_round", "last_round")])
    try:
        return by_trace(num_clients, spans.astype(np.int64).T.tolist())
    except ValueError as error:
        raise ValueError(f"devices_profile.available: {path}: {error}") from None


def files_of(devices: DevicesConfig) -> list[str]:
    """Returns the files that the fields name."""
    files = [] if devices.csv is None else [devices.csv]
    if devices.available is not None and devices.available.startswith(TRACE):
        files.append(devices.available.removeprefix(TRACE))
    return files


def fitting(needed: Mapping[str, float], memory: np.ndarray) -> list[str]:
    """Returns each client's architecture: of those that train in its memory, the largest.

    Of equal ones, the first is taken.

    Args:
      needed: architecture -> bytes that its training needs.
      memory: bytes of each client's device, float64 [num_clients].

    Raises:
      ValueError: a client has too little memory for every architecture. One line.
    """
    largest_first = sorted(needed, key=needed.__getitem__, reverse=True)
    least = largest_first[-1]
    short = np.flatnonzero(memory < needed[least])
    if len(short):
        raise ValueError(
            f"devices_profile.memory: client {short[0]} has {memory[short[0]]:.4g} bytes, but the "
            f"smallest architecture, {least}, needs {needed[least]:.4g} to train; {len(short)} of "
            f"{len(memory)} have too little"
        )
    return [next(name for name in largest_first if needed[name] <= room) for room in memory]


def described(devices: DevicesConfig) -> str:
    """Returns the fields that are set, as a sentence to append; "" for none."""
    fields = [f"{name} {value}" for name, value in unusual(devices).items() if name != "seed"]
    return f" Devices: {', '.join(fields)}, seed {devices.seed}." if fields else ""


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
      The columns that the file has, float64 [num_clients] each, ordered by client.

    Raises:
      ValueError: see `read_rows`; or a client has no row, or two. One line.
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
      whole: required columns, with integers from 0.
      positive: optional columns, with numbers above 0.

    Raises:
      ValueError: the file cannot be read, or has an unknown column or an invalid value. One line.
    """
    # imports pyarrow, which only configs with a file need
    from fedjax_ht.lab.readers.table_files import table_with_head

    place = f"{field}: {path}:"
    try:
        table = table_with_head(Path(path))
    except OSError as error:
        raise ValueError(f"{field}: {path} cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{place} {error}") from None
    names = table.column_names
    for name in names:
        if name not in (*whole, *positive):
            raise ValueError(f"{place} {unknown('column', name, (*whole, *positive))}")
    for name in whole:
        if name not in names:
            raise ValueError(f"{place} its first line must have a column {name!r}")
    columns = {}
    for name in names:
        values = []
        for number, text in enumerate(table[name].to_pylist(), 1):
            value = _number(text, name in whole)
            if value is None:
                rule = CELL_RULES[name in whole]
                raise ValueError(
                    f"{place} {name} of row {number} is {text.strip()!r}; it must be {rule}"
                )
            values.append(value)
        columns[name] = np.array(values, np.float64)
    return columns


def _number(text: str, whole: bool) -> float | None:
    """Returns a cell's number; None if it is not a number or out of range."""
    try:
        value = float(text)
    except ValueError:
        return None
    if whole and not (value.is_integer() and value < 2**31):
        return None
    is_positive = value > 0 or (whole and value == 0)
    return value if is_positive and value < np.inf else None
