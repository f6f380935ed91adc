"""The server of a deployment: its clients, models and compiled programs.

`rounds` runs its rounds.
"""

import functools
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.check.names import listed_clients
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import compiled
from fedjax_ht.core.context import Turn
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.message_forms import result_form, sends_payload
from fedjax_ht.core.round import ClientResult, send
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.data.meaning import MEANING
from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.messages import Envelope, Expected, invalid_hello, is_run_name, printable
from fedjax_ht.deploy.noise import LEDGER_FILE, Noise, read_ledger, update_noise
from fedjax_ht.deploy.plan import Plan, description, make_models, task_from_json
from fedjax_ht.deploy.samples import server_data
from fedjax_ht.deploy.secure_sums import sum_groups
from fedjax_ht.lab.runs.folder import read_json, write_json
from fedjax_ht.simulation.engine import first_server
from fedjax_ht.simulation.round import Addition, count_downloads
from fedjax_ht.simulation.serving import run_server

CLIENTS_FILE = "clients.json"
KEPT_ENTRIES = ("client", "counts", "flops", "task", "meaning")
"""Entries of a reply to "hello" that a run stores for all its clients."""
MOST_SAMPLES = 10_000_000
"""Default of the most samples in each split of a client."""
ClientHeaders = dict[int, dict[str, Any]]
"""Client id -> header of its reply to "hello"."""


ProblemOf = Callable[[int, dict[str, Any]], str]
"""(client id, header of its reply) -> what is wrong with it; "" if nothing is."""


class Transport(NamedTuple):
    """The functions that carry messages to clients, and the limits on clients.

    Attributes:
      meet: (hello, min_clients) -> headers of the reachable clients, by id; waits until
        `min_clients` are reachable, or its patience ends.
      exchange: ({client: request}, {client: bytes}) -> {client: reply}, for the clients that reply
        in time; the bytes limit the arrays of a reply.
      add: ({client: request}, {group: its clients}, {group: length}, problem_of) -> ({client:
        reply}, {group: total}), by a secure sum of each group's vectors of that length, see
        `secure_sums.uplink_vector`. The sum skips a client if problem_of(client, header of its
        reply) is not "". A reply has no arrays; its header has "error" if the client is not in the
        sum. A total is a float64 vector, or a message that explains why there is none.
      tell: called with a message for the server's operator.
      patience: seconds to wait for a client if none can be reached.
      most_samples: most samples of a split that a client may report.
      audit: the server's log.
    """

    meet: Callable[[Envelope, int], ClientHeaders]
    exchange: Callable[[dict[int, Envelope], dict[int, int]], dict[int, Envelope]]
    add: Callable[
        [dict[int, Envelope], dict[str, list[int]], dict[str, int], ProblemOf],
        tuple[dict[int, Envelope], dict[str, np.ndarray | str]],
    ]
    tell: Callable[[str], None] = print
    patience: float = 0.0
    most_samples: int = MOST_SAMPLES
    audit: Audit = no_audit


def all_headers(plan: Plan, transport: Transport, folder: Path) -> ClientHeaders:
    """Returns each client's header by id, the run's stored one first; see `make_server`."""
    known = read_clients(folder / CLIENTS_FILE)
    present = contact_clients(plan, transport, plan.num_clients)
    headers = present | known
    missing = sorted(set(range(plan.num_clients)) - set(headers))
    if missing:
        raise ValueError(
            f"{len(missing)} of {plan.num_clients} clients cannot be reached: "
            f"{', '.join(map(str, missing))}"
        )
    if absent := sorted(set(headers) - set(present)):
        transport.tell(f"continuing without {listed_clients(absent, None)}: unreachable")
    _refuse_unlike([*sorted(headers.items()), *sorted(present.items())])
    if not known:
        write_clients(folder / CLIENTS_FILE, headers)
    return headers


def _refuse_unlike(headers: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Rejects clients with different samples, or whose samples have different meanings."""
    (one, first), *_ = headers
    for client, header in headers:
        if header["task"] != first["task"]:
            raise ValueError(
                f"client {client} has samples of {printable(str(header['task']))}, client {one} of "
                f"{printable(str(first['task']))}; all must be the same"
            )
    for what in MEANING:
        named = [(i, x["meaning"][what]) for i, x in headers if x["meaning"][what] is not None]
        for client, names in named:
            if names != named[0][1]:
                raise ValueError(
                    f"client {client} has other names of {what} than client {named[0][0]}, or "
                    "orders them differently; all clients' data need the same names in one order "
                    "(class_names of an .npz, columns of a table, one tokenizer)"
                )


def hello(plan: Plan) -> Envelope:
    """Returns the first message to a client."""
    return Envelope({"kind": "hello", "about": description(plan)}, {})


def contact_clients(plan: Plan, transport: Transport, min_clients: int) -> ClientHeaders:
    """Returns the reachable clients with valid headers, see `Transport.meet`."""
    valid = {}
    for client, header in transport.meet(hello(plan), min_clients).items():
        if problem := _problem(plan, client, header, transport.most_samples):
            transport.tell(f"client {client} is left out: {problem}")
            transport.audit("left_out", client=client, reason=problem)
        else:
            valid[client] = header
    return valid


def _problem(plan: Plan, client: int, header: dict[str, Any], most_samples: int) -> str:
    """Returns why a client is excluded because of its header; "" if it is not."""
    if client >= plan.num_clients:
        return f"the config has clients 0 to {plan.num_clients - 1}"
    if name := invalid_hello(header):
        return f"{name!r} in its header is missing or invalid"
    for split, count in header["counts"].items():
        if count > most_samples:
            return f"it reports {count} samples to {split}, but --most_samples is {most_samples}"
    return ""


def write_clients(path: Path, headers: ClientHeaders) -> None:
    """Writes the headers of a run's clients."""
    kept = {}
    for client, header in sorted(headers.items()):
        kept[str(client)] = {name: header[name] for name in KEPT_ENTRIES}
    write_json(path, kept)


def read_clients(path: Path) -> ClientHeaders:
    """Reads the file of `write_clients`; {} if there is none.

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


class Server(NamedTuple):
    """A deployment's server.

    Attributes:
      plan: the config.
      federation: the models, and the clients of each.
      headers: each client's header when the run began.
      counts: split -> number of samples, int64 [num_clients].
      flops: FLOPs of a round of each client, float64 [num_clients].
      run: name of this run, for the clients' folders.
      forms: bucket name -> form of a client's result: the uplink, the message that carries it,
        and its training metrics.
      groups: name -> ids of the clients whose uplinks are summed; None if uplinks arrive singly.
      send: bucket name -> compiled (server state, round, info) -> downlink.
      decode: bucket name -> compiled (message, server state, round, info) -> uplink.
      serve: `simulation.serving.run_server`.
      first: `simulation.engine.first_server`.
      pretrained: `Pretrained.variables` of the method, on its device.
      public: the public set, on the server's device; None for methods that read none.
      additions: what the report of a round also has, see `simulation.round.Round`.
      noise: noise that the server adds itself; None if it adds none.
      ledger: file about what was sent under noise, see `noise.read_ledger`.
      saved: `last_round` of each kept checkpoint, int32 [num_clients].
      transport: the functions that carry messages to clients.
      caught: numbers of the signals that have arrived; after one, no round begins.
    """

    plan: Plan
    federation: Federation
    headers: ClientHeaders
    counts: dict[str, np.ndarray]
    flops: np.ndarray
    run: str
    forms: dict[str, ClientResult]
    groups: dict[str, tuple[int, ...]] | None
    send: dict[str, Callable]
    decode: dict[str, Callable]
    serve: Callable
    first: Callable
    pretrained: PyTree
    public: Data | None
    additions: tuple[Addition, ...]
    noise: Noise | None
    ledger: Path
    saved: deque
    transport: Transport
    caught: Sequence[int] = ()

    def bucket_of(self, client: int) -> Bucket:
        """Returns the bucket of a client."""
        return self.federation.buckets[self.federation.assignment[client]]

    def form_of(self, client: int) -> ClientResult:
        """Returns shapes and dtypes of a client's result."""
        return self.forms[self.bucket_of(client).name]


def make_server(
    plan: Plan,
    transport: Transport,
    run: str,
    folder: Path,
    *,
    keep: int = 2,
) -> Server:
    """Waits for the clients, and makes the models for the task that they report.

    All clients are needed once. Their headers are then stored in `folder`, and a restarted server
    continues without those that it cannot reach.

    Args:
      plan: the config.
      transport: the functions that carry messages to clients.
      run: name of this run, letters and digits.
      folder: folder of the run.
      keep: number of checkpoints that a run keeps.

    Raises:
      ValueError: a client is missing, two of them have different tasks, or the ledger cannot be
        read. One line.
    """
    if plan.unit is not None:
        read_ledger(folder / LEDGER_FILE)  # fails before any client is asked
    headers = all_headers(plan, transport, folder)
    federation = make_models(plan, task_from_json(headers[0]["task"]))
    counts = {
        split: np.array([headers[i]["counts"][split] for i in range(plan.num_clients)], np.int64)
        for split in ClientIndices._fields
    }
    method = plan.method
    forms = {b.name: result_form(method, federation, b, plan.channel) for b in federation.buckets}
    uplinks = {name: form.uplink for name, form in forms.items()}
    groups = sum_groups(method, federation, uplinks) if plan.secure_sums else None
    if groups and (idle := np.flatnonzero(counts["train"] == 0)).size:
        transport.tell(
            "clients without training samples are not asked to train, because of --secure_sums: "
            f"{', '.join(map(str, idle))}"
        )
    noise, privacy, ledger = None, plan.options.privacy, folder / LEDGER_FILE
    if privacy and privacy.unit == "client":
        noise = update_noise(privacy, any(map(sends_payload, uplinks.values())), ledger)
    public = server_data(plan.public)
    # a sum does not tell clients apart
    outlier_bound = 0.0 if plan.secure_sums else plan.options.outlier_bound
    return Server(
        plan=plan,
        federation=federation,
        headers=headers,
        counts=counts,
        flops=np.array([headers[i]["flops"] for i in range(plan.num_clients)]),
        run=run,
        forms=forms,
        groups=groups,
        send={
            b.name: compiled(functools.partial(_send_downlink, plan, federation, b))
            for b in federation.buckets
        },
        decode={b.name: _decoder(plan, federation, b) for b in federation.buckets},
        serve=run_server(method, federation, outlier_bound),
        first=first_server(method, federation),
        pretrained=collect(client_mesh(1), method.needs.pretrained.variables),
        public=public,
        additions=count_downloads(federation, public),
        noise=noise,
        ledger=ledger,
        saved=deque(maxlen=keep),
        transport=transport,
    )


def leave_out(server: Server, client: int, when: str, reason: str) -> None:
    """Reports that a client is excluded from a round or an evaluation, and why."""
    server.transport.tell(f"client {client}, {when}: {reason}")
    server.transport.audit("left_out", client=client, when=when, reason=reason)


def expected_entries(server: Server, client: int) -> Expected:
    """Returns the entries that the server expects in a client's replies."""
    unit = server.plan.unit
    return Expected(
        unit=unit,
        rules=server.plan.method.rules,
        # metrics that noise hides are not sent
        metrics=() if unit in ("upload", "sample") else tuple(server.form_of(client).metrics),
        counts={split: int(counts[client]) for split, counts in server.counts.items()},
    )


def run_name(folder: Path) -> str:
    """Returns the name of the run in a folder, created at its first start.

    Raises:
      ValueError, OSError: the folder has no readable name. One line.
    """
    path = folder / "run.json"
    if not path.exists():
        write_json(path, {"run": uuid.uuid4().hex})
    name = read_json(path).get("run")
    if not is_run_name(name):
        raise ValueError(
            f"{path} is damaged: run must be up to 64 letters and digits, by which clients "
            "identify their states; restore it, or choose another --workdir"
        )
    return name


def _send_downlink(plan: Plan, federation: Federation, bucket: Bucket, server, round, info):
    turn = Turn(jax.random.key(plan.options.seed), round, info)
    return send(plan.method, federation, bucket, plan.channel, server=server, turn=turn)


def _decoder(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    def decode(message, server, round, info):
        # the downlink that the client answers is made again, so that it need not be kept
        downlink = _send_downlink(plan, federation, bucket, server=server, round=round, info=info)
        turn, code = Turn(jax.random.key(plan.options.seed), round, info), plan.method.wire.code
        assert code is not None  # nothing else is decoded
        return code.decode(bucket, message, downlink, turn.context(Purpose.TRAIN))

    return compiled(decode)
