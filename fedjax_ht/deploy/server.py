"""The server of a deployment: the clients that it reaches, and its compiled programs.

`rounds` plays its rounds.
"""

import json
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.files import atomic_open
from fedjax_ht.core.forms import sends_payload, uplink_forms
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.round import send
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.headers import invalid_entry, printable
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.noise import LEDGER_FILE, Entropy, Noise, fresh_secret, update_noise
from fedjax_ht.deploy.plan import Plan, description, make_models, task_from_json
from fedjax_ht.deploy.secure_sums import sum_groups
from fedjax_ht.experiment.run_folder import read_json
from fedjax_ht.simulation.serving import serve_trials
from fedjax_ht.simulation.trials import first_server

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


class Server(NamedTuple):
    """A deployment's server.

    Attributes:
      plan: the config.
      federation: the models, and the clients of each.
      counts: split -> number of samples, int64 [num_clients].
      flops: of a round of each client, float64 [num_clients].
      run: name of this run, for the clients' folders.
      forms: bucket name -> the form of its uplinks.
      groups: name -> ids of the clients whose uplinks are summed; None where uplinks come singly.
      send: bucket name -> compiled (server state, round, info) -> downlink.
      serve: `simulation.serving.serve_trials`.
      first: `simulation.trials.first_server`.
      pretrained: `Pretrained.variables` of the method, on its device.
      noise: that the server adds itself; None where it adds none.
      ledger: file of what was sent under noise, see `noise.add_to_ledger`.
      saved: for each checkpoint that is kept, its `last_round`, int32 [num_clients].
      transport: how messages reach clients.
      warn: takes a line for whoever watches the server.
      patience: seconds to wait for a client where none can be reached.
    """

    plan: Plan
    federation: Federation
    counts: dict[str, np.ndarray]
    flops: np.ndarray
    run: str
    forms: dict[str, PyTree]
    groups: dict[str, tuple[int, ...]] | None
    send: dict[str, Callable]
    serve: Callable
    first: Callable
    pretrained: PyTree
    noise: Noise | None
    ledger: Path
    saved: deque
    transport: Transport
    warn: Callable[[str], None]
    patience: float


def make_server(
    plan: Plan,
    transport: Transport,
    run: str,
    warn: Callable[[str], None],
    folder: Path,
    entropy: Entropy = fresh_secret,
    keep: int = 2,
    patience: float = 0.0,
) -> Server:
    """Waits until all clients can be reached, and makes the models for the task that they report.

    Args:
      plan: the config.
      transport: how messages reach clients.
      run: a name for this run, letters and digits.
      warn: takes a line for whoever watches the server.
      folder: of the run.
      entropy: draws the secrets of the server's noise.
      keep: how many checkpoints a run keeps.
      patience: seconds to wait for a client where none can be reached.

    Raises:
      ValueError: a client is missing, or two of them have different tasks. One line.
    """
    headers = contact_clients(plan, transport, plan.num_clients, warn)
    if missing := sorted(set(range(plan.num_clients)) - set(headers)):
        raise ValueError(
            f"{len(missing)} of {plan.num_clients} clients cannot be reached: "
            f"{', '.join(map(str, missing))}"
        )
    task = headers[0]["task"]
    for client, header in headers.items():
        if header["task"] != task:
            raise ValueError(
                f"client {client} has samples of {printable(str(header['task']))}, client 0 of "
                f"{printable(str(task))}; all must be alike"
            )
    federation = make_models(plan, task_from_json(task))
    counts = {
        split: np.array([headers[i]["counts"][split] for i in range(plan.num_clients)], np.int64)
        for split in ClientIndices._fields
    }
    method = plan.method
    forms = uplink_forms(method, federation, plan.channel)
    groups = sum_groups(method, federation, forms) if plan.secure_sums else None
    if groups and (idle := np.flatnonzero(counts["train"] == 0)).size:
        warn(
            "clients without training samples are not asked to train, by --secure_sums: "
            f"{', '.join(map(str, idle))}"
        )
    noise, privacy = None, plan.options.privacy
    if privacy is not None and privacy.unit == "client":
        sends = any(map(sends_payload, forms.values()))
        noise = update_noise(privacy, sends, folder / LEDGER_FILE, entropy)
    # what is made of a sum tells no client apart
    outlier_bound = 0.0 if plan.secure_sums else plan.options.outlier_bound
    return Server(
        plan=plan,
        federation=federation,
        counts=counts,
        flops=np.array([headers[i]["flops"] for i in range(plan.num_clients)]),
        run=run,
        forms=forms,
        groups=groups,
        send={b.name: _sender(plan, federation, b) for b in federation.buckets},
        serve=serve_trials(method, federation, outlier_bound),
        first=first_server(method, federation),
        pretrained=collect(client_mesh(1), method.pretrained.variables),
        noise=noise,
        ledger=folder / LEDGER_FILE,
        saved=deque(maxlen=keep),
        transport=transport,
        warn=warn,
        patience=patience,
    )


def run_name(folder: Path) -> str:
    """Returns the name of the run in a folder, made at its first start."""
    path = folder / "run.json"
    if not path.exists():
        with atomic_open(path) as file:
            json.dump({"run": uuid.uuid4().hex}, file)
    return read_json(path)["run"]


def hello(plan: Plan) -> Envelope:
    """Returns the first message to a client."""
    return Envelope({"kind": "hello", "about": description(plan)}, {})


def contact_clients(
    plan: Plan, transport: Transport, min_clients: int, warn: Callable[[str], None]
) -> ClientHeaders:
    """Returns the clients that can be reached and whose headers are valid, see `Transport.meet`."""
    valid = {}
    for client, header in transport.meet(hello(plan), min_clients).items():
        if client >= plan.num_clients:
            warn(f"client {client} is left out: the config has clients 0 to {plan.num_clients - 1}")
        elif name := invalid_entry(header, "hello", None, ()):
            warn(f"client {client} is left out: {name!r} in its header is missing or invalid")
        else:
            valid[client] = header
    return valid


def _sender(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    def send_downlink(server, round, info):
        root = jax.random.key(plan.options.seed)
        return send(plan.method, federation, bucket, plan.channel, server, root, round, info)

    return jax.jit(send_downlink)
