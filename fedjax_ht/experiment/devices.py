"""From `config.devices_profile` to the clients' devices: what they can do, and the largest model
that each has room for."""

import csv
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.configs.base import DevicesProfileFields
from fedjax_ht.core.bounds import Part, Positive, check_value
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.names import unknown
from fedjax_ht.simulation.profile import Available, Profile, by_chance, by_trace

QUANTITIES = ("flops", "up", "down", "memory")  # the place of each is that of its random numbers
WIDEST = 10  # of a lognormal, in standard deviations of the logarithm


def make_profile(fields: ConfigDict, num_clients: int) -> Profile | None:
    """The devices of `config.devices_profile`; None where nothing of a round is simulated.

    Raises:
      ValueError: a field, or a file, is wrong. One line.
    """
    rates = client_values(fields, num_clients)
    rates.pop("memory", None)
    available = availability(fields, num_clients)
    if fields.deadline and not rates:
        given = f"devices_profile.deadline is {fields.deadline}"
        raise ValueError(f"{given}, and nothing takes time; give flops, up or down")
    if fields.late == "arrives" and not fields.deadline:
        raise ValueError(
            "devices_profile.late is 'arrives', and without a deadline nothing is late"
        )
    return (
        Profile(available, **rates, deadline=fields.deadline, late=fields.late)
        if rates or available
        else None
    )


def client_values(fields: ConfigDict, num_clients: int) -> dict[str, np.ndarray]:
    """What is given of `QUANTITIES`, by fields or by the file, float64 [num_clients] each; errors
    as of `make_profile`."""
    found = (
        read_table("devices_profile.csv", fields.csv, QUANTITIES, num_clients) if fields.csv else {}
    )
    for name in QUANTITIES:
        if not fields[name]:
            continue
        if name in found:
            given = f"devices_profile.{name} is {fields[name]!r}"
            raise ValueError(
                f"{given}, and {fields.csv} has a column of that name; leave one of them out"
            )
        found[name] = drawn(name, fields[name], num_clients, fields.seed)
    return found


def drawn(name: str, text: str, num_clients: int, seed: int) -> np.ndarray:
    """Of one quantity, every client's number: the same, or drawn once. A client's own does not hang
    on how many there are."""
    kind, *numbers = text.split("/")
    try:
        if not numbers:
            check_value(name, float(kind), Positive)
            return np.full(num_clients, float(kind))
        if kind == "lognormal" and len(numbers) == 2:
            median, sigma = map(float, numbers)
            check_value(name, median, Positive)
            if 0 <= sigma <= WIDEST:
                normal = host_generator(
                    seed, Purpose.DEVICES, QUANTITIES.index(name)
                ).standard_normal(num_clients)
                return median * np.exp(sigma * normal)
    except ValueError:
        pass
    raise ValueError(
        f"devices_profile.{name} is {text!r}; it must be empty, a number above 0 such as 1e9, or "
        f"lognormal/MEDIAN/SIGMA with a SIGMA of at most {WIDEST}, such as lognormal/1e9/0.5"
    )


def availability(fields: ConfigDict, num_clients: int) -> Available | None:
    """Who is there, from `devices_profile.available`; None: everybody, always."""
    text = fields.available
    if not text:
        return None
    if text.startswith("csv:"):
        path = text.removeprefix("csv:")
        spans = read_rows(
            "devices_profile.available", path, ("client", "first_round", "last_round")
        )
        try:
            return by_trace(num_clients, np.array(list(spans.values()), np.int64).T.tolist())
        except ValueError as error:
            raise ValueError(f"devices_profile.available: {path}: {error}") from None
    try:
        check_value("available", float(text), Part)
    except ValueError:
        rule = "it must be empty, a number above 0 and at most 1, or csv:PATH"
        raise ValueError(f"devices_profile.available is {text!r}; {rule}") from None
    return by_chance(num_clients, float(text), fields.seed)


def read_table(
    field: str, path: str, columns: Sequence[str], num_clients: int
) -> dict[str, np.ndarray]:
    """Those of the columns that a file has, in the order of its column "client", which names every
    client once."""
    found = read_rows(field, path, ("client",), columns)
    clients = found.pop("client")
    expected = np.arange(num_clients)
    if len(clients) != num_clients or not np.array_equal(np.sort(clients), expected):
        lacking = sorted(set(expected.tolist()) - set(clients.astype(int).tolist()))
        wrong = (
            f"it has no row of client {lacking[0]}" if lacking else f"it has {len(clients)} rows"
        )
        raise ValueError(
            f"{field}: {path}: {wrong}; it must have one for each client, 0 to {num_clients - 1}"
        )
    return {name: values[np.argsort(clients)] for name, values in found.items()}


def read_rows(
    field: str, path: str, whole: Sequence[str], positive: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The columns of a CSV file with a header, float64 [rows] each.

    Args:
      field: of the config, for the message.
      path: of the file.
      whole: columns that must be there, of whole numbers from 0 on.
      positive: columns that may be there, of numbers above 0.

    Raises:
      ValueError: the file cannot be read, or has another column, or something else in one. One
        line.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or "it is no CSV file"
        raise ValueError(f"{field}: {path} cannot be read ({why})") from None
    names = [name.strip() for name in head]
    for name in names:
        if name not in (*whole, *positive):
            raise ValueError(f"{field}: {path}: {unknown('column', name, (*whole, *positive))}")
    if missing := [name for name in whole if names.count(name) != 1]:
        raise ValueError(f"{field}: {path}: its first line must have one column {missing[0]!r}")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(
                f"{field}: {path}: row {number} has {len(row)} values, not {len(names)}"
            )
        for name, text in zip(names, row):
            columns[name].append(_number(text, name in whole))
            if np.isnan(columns[name][-1]):
                rule = "a whole number from 0 on" if name in whole else "a number above 0"
                raise ValueError(
                    f"{field}: {path}: {name} of row {number} is {text.strip()!r}; it must be "
                    f"{rule}"
                )
    return {name: np.array(values, np.float64) for name, values in columns.items()}


def _number(text: str, whole: bool) -> float:
    """NaN of what is none, or out of range."""
    try:
        value = float(text)
        fits = value.is_integer() and 0 <= value < 2**31 if whole else 0 < value < np.inf
        return value if fits else np.nan
    except ValueError:
        return np.nan


def files_of(fields: ConfigDict) -> list[str]:
    """Those that the fields name."""
    named = [
        fields.csv,
        fields.available.removeprefix("csv:") if fields.available.startswith("csv:") else "",
    ]
    return [path for path in named if path]


def fitting(needed: Mapping[str, float], memory: np.ndarray) -> list[str]:
    """Each client's architecture: of those for whose training its memory is enough the one that
    needs most, of equals the first.

    Args:
      needed: architecture -> bytes.
      memory: of each client, in bytes.

    Raises:
      ValueError: a client has room for none. One line.
    """
    largest_first = sorted(needed, key=needed.__getitem__, reverse=True)
    least = largest_first[-1]
    if len(short := np.flatnonzero(memory < needed[least])):
        raise ValueError(
            f"devices_profile.memory: client {short[0]} has {memory[short[0]]:.4g} bytes, and the "
            "smallest "
            f"architecture, {least}, takes {needed[least]:.4g} to train; {len(short)} of "
            f"{len(memory)} have too little"
        )
    return [next(name for name in largest_first if needed[name] <= room) for room in memory]


def described(fields: ConfigDict) -> str:
    """The fields that are set, as a sentence that follows another; "" where none is."""
    usual = DevicesProfileFields()._asdict() | {"seed": fields.seed}
    given = [f"{name} {fields[name]}" for name, default in usual.items() if fields[name] != default]
    return f" Devices: {', '.join(given)}, seed {fields.seed}." if given else ""
