"""The clients that a server reaches: the functions to reach them, and their headers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.data.meaning import MEANING
from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.headers import invalid_hello, printable
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.plan import Plan, description
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.bad_clients import named
from fedjax_ht.lab.runs.folder import read_json

CLIENTS_FILE = "clients.json"
KEPT_ENTRIES = ("client", "counts", "flops", "task", "meaning")
"""Entries of a reply to "hello" that a run keeps, of all its clients."""
MOST_SAMPLES = 10_000_000
"""By default, of each split of a client."""
ClientHeaders = dict[int, dict[str, Any]]
"""Client id -> header of its reply to "hello"."""


class Transport(NamedTuple):
    """The functions by which messages reach clients.

    Attributes:
      meet: (hello, min_clients) -> headers of the clients that can be reached, by id; waits until
        `min_clients` of them can, or its patience ends.
      exchange: ({client: request}, {client: bytes}) -> {client: reply}, of the clients that reply
        in time; the bytes are how long the arrays of a reply may be.
      add: ({client: request}, {group: its clients}, {client: bytes}) -> ({client: reply},
        {group: total}), by a secure sum of each group's vectors, see `secure_sums.uplink_vector`.
        A reply has no arrays; its header has "error" where the client is not in the sum. A total is
        a float64 vector, or a line that says why there is none.
    """

    meet: Callable[[Envelope, int], ClientHeaders]
    exchange: Callable[[dict[int, Envelope], dict[int, int]], dict[int, Envelope]]
    add: Callable[
        [dict[int, Envelope], dict[str, list[int]], dict[int, int]],
        tuple[dict[int, Envelope], dict[str, np.ndarray | str]],
    ]


def all_headers(
    plan: Plan,
    transport: Transport,
    warn: Callable[[str], None],
    *,
    folder: Path,
    most_samples: int,
    audit: Audit,
) -> ClientHeaders:
    """Returns each client's header by id, the run's kept one first; see `server.make_server`."""
    known = read_clients(folder / CLIENTS_FILE)
    present = contact_clients(
        plan, transport, plan.num_clients, warn=warn, most_samples=most_samples, audit=audit
    )
    headers = present | known
    missing = sorted(set(range(plan.num_clients)) - set(headers))
    if missing:
        raise ValueError(
            f"{len(missing)} of {plan.num_clients} clients cannot be reached: "
            f"{', '.join(map(str, missing))}"
        )
    if absent := sorted(set(headers) - set(present)):
        warn(f"going on without {named(absent)}: not to be reached")
    for client, header in (*headers.items(), *present.items()):
        _refuse_unlike(client, header, headers[0])
    if not known:
        write_clients(folder / CLIENTS_FILE, headers)
    return headers


def _refuse_unlike(client: int, header: dict[str, Any], first: dict[str, Any]) -> None:
    """Refuses a client whose samples, or what their numbers mean, are not those of client 0."""
    if header["task"] != first["task"]:
        raise ValueError(
            f"client {client} has samples of {printable(str(header['task']))}, client 0 of "
            f"{printable(str(first['task']))}; all must be alike"
        )
    for what in MEANING:
        pair = header["meaning"][what], first["meaning"][what]
        if None not in pair and pair[0] != pair[1]:
            raise ValueError(
                f"client {client} has other names of {what} than client 0, or another order of "
                "them; every client's data need the same, in one order (class_names of an .npz, "
                "columns of a table, one tokenizer)"
            )


def hello(plan: Plan) -> Envelope:
    """Returns the first message to a client."""
    return Envelope({"kind": "hello", "about": description(plan)}, {})


def contact_clients(
    plan: Plan,
    transport: Transport,
    min_clients: int,
    warn: Callable[[str], None],
    most_samples: int = MOST_SAMPLES,
    audit: Audit = no_audit,
) -> ClientHeaders:
    """Returns the clients that can be reached and whose headers are valid, see `Transport.meet`."""
    valid = {}
    for client, header in transport.meet(hello(plan), min_clients).items():
        if problem := _problem(plan, client, header, most_samples):
            warn(f"client {client} is left out: {problem}")
            audit("left_out", client=client, reason=problem)
        else:
            valid[client] = header
    return valid


def _problem(plan: Plan, client: int, header: dict[str, Any], most_samples: int) -> str:
    """Says why a client is left out because of its header; "" where it is not."""
    if client >= plan.num_clients:
        return f"the config has clients 0 to {plan.num_clients - 1}"
    if name := invalid_hello(header):
        return f"{name!r} in its header is missing or invalid"
    for split, count in header["counts"].items():
        if count > most_samples:
            return (
                f"it says that it has {count} samples to {split}, and --most_samples is "
                f"{most_samples}"
            )
    return ""


def write_clients(path: Path, headers: ClientHeaders) -> None:
    """Writes the headers of a run's clients."""
    kept = {}
    for client, header in sorted(headers.items()):
        kept[str(client)] = {name: header[name] for name in KEPT_ENTRIES}
    with atomic_open(path) as file:
        json.dump(kept, file)


def read_clients(path: Path) -> ClientHeaders:
    """Reads the file of `write_clients`; {} where there is none.

    Raises:
      ValueError: it is damaged. One line.
    """
    if not path.exists():
        return {}
    headers = {}
    for name, header in read_json(path).items():
        if not isinstance(header, dict) or invalid_hello(header) or str(header["client"]) != name:
            raise ValueError(
                f"{path} is damaged at client {printable(name)}; delete it, and start the server "
                "when all clients can be reached"
            )
        headers[header["client"]] = header
    return headers
