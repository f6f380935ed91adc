"""The server of real clients: what it runs once it knows who they are. What it does in a round is
in `rounds`."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.forms import sends_payload, uplink_form
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.method import PyTree
from fedjax_ht.core.round import send
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.headers import printable, unreadable
from fedjax_ht.deploy.noise import LEDGER, Entropy, Noise, fresh_words, noise_of_sums
from fedjax_ht.deploy.plan import Plan, about, make_models, task_of_json
from fedjax_ht.deploy.sums import summed_clients
from fedjax_ht.simulation import trials as per_trial

Heads = dict[int, dict[str, Any]]  # client id -> what it said


class Transport(NamedTuple):
    """How messages reach clients.

    Attributes:
      meet: (hello, wanted) -> the heads of the clients that can be reached now, by id; it waits
        until `wanted` of them can, or its patience ends.
      exchange: ({client: Envelope}, {client: bytes}) -> {client: Envelope}, of those that answer in
        time; the bytes are how long the arrays of an answer may be.
      add: ({client: Envelope}, {group: its clients}, {client: bytes}) -> ({client: Envelope},
        {group: sum}), by a secure sum of each group's vectors, see `sums.as_vector`: what the
        clients said besides, or "error" of one that is not in the sum; and the float64 vector, or
        in words why there is none.
    """

    meet: Callable[[Envelope, int], Heads]
    exchange: Callable[[dict[int, Envelope], dict[int, int]], dict[int, Envelope]]
    add: Callable[
        [dict[int, Envelope], dict[str, list[int]], dict[int, int]],
        tuple[dict[int, Envelope], dict[str, np.ndarray | str]],
    ]


class Server(NamedTuple):
    """What a deployment's server runs.

    Attributes:
      plan, federation: what is bound.
      counts: split -> int64 [num_clients], samples.
      flops: float64 [num_clients], of a round of each.
      run: the name of this run for the clients' folders.
      forms: bucket name -> the form of its uplinks.
      groups: name -> clients whose uplinks are summed together; None where uplinks come one by one.
      send: bucket name -> compiled (server, round, info) -> downlink.
      serve, first: as of `simulation.trials`.
      pretrained: `Pretrained.variables` of the method, on its device.
      noise: what it adds itself; None where it adds none.
      ledger: the file of what is told of privacy, see `noise`.
      saved: for each checkpoint that may be gone back to, `last_round` of it, int32 [num_clients].
      transport: how messages reach clients.
      warn: takes a line for whoever watches.
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
    entropy: Entropy = fresh_words,
    keep: int = 2,
    patience: float = 0.0,
) -> Server:
    """Waits until all clients can be reached, and makes the models for what they say their samples
    are.

    Args:
      plan: the config.
      transport: how messages reach clients.
      run: a name for this run, letters and digits.
      warn: takes a line for whoever watches.
      folder: the run's.
      entropy: where the words of the server's noise come from.
      keep: how many checkpoints a run keeps.
      patience: seconds to wait for a client where none can be reached.

    Raises:
      ValueError: a client is missing, or two of them have different tasks. One line.
    """
    heads = met(plan, transport, plan.num_clients, warn)
    if lost := sorted(set(range(plan.num_clients)) - set(heads)):
        raise ValueError(
            f"of {plan.num_clients} clients {len(lost)} are not there: {', '.join(map(str, lost))}"
        )
    task = heads[0]["task"]
    for client, head in heads.items():
        if head["task"] != task:
            raise ValueError(
                f"client {client} has samples of {printable(str(head['task']))}, client 0 of "
                f"{printable(str(task))}"
            )
    federation = make_models(plan, task_of_json(task))
    counts = {
        split: np.array([heads[i]["counts"][split] for i in range(plan.num_clients)], np.int64)
        for split in ClientIndices._fields
    }
    method, channel = plan.method, plan.channel
    forms = {b.name: uplink_form(method, federation, b, channel) for b in federation.buckets}
    groups = summed_clients(method, federation, forms) if plan.secure_sums else None
    if groups and (idle := np.flatnonzero(counts["train"] == 0)).size:
        warn(
            "clients without training samples are not asked to train, by --secure_sums: "
            f"{', '.join(map(str, idle))}"
        )
    outlier_bound = 0.0 if plan.secure_sums else plan.options.outlier_bound
    return Server(
        plan,
        federation,
        counts,
        np.array([heads[i]["flops"] for i in range(plan.num_clients)]),
        run,
        forms,
        groups,
        {b.name: _sender(plan, federation, b) for b in federation.buckets},
        per_trial.serve(method, federation, outlier_bound),
        per_trial.first_server(method, federation),
        collect(client_mesh(1), method.pretrained.variables),
        noise_of_sums(
            plan.options.privacy, any(map(sends_payload, forms.values())), folder / LEDGER, entropy
        )
        if plan.unit == "client"
        else None,
        folder / LEDGER,
        deque(maxlen=keep),
        transport,
        warn,
        patience,
    )


def hello(plan: Plan) -> Envelope:
    """The first message to a client."""
    return Envelope({"kind": "hello", "about": about(plan)}, {})


def met(plan: Plan, transport: Transport, wanted: int, warn: Callable[[str], None]) -> Heads:
    """The clients that can be reached now, see `Transport.meet`, of which what they say can be
    read."""
    found = {}
    for client, head in transport.meet(hello(plan), wanted).items():
        if client >= plan.num_clients:
            warn(f"client {client} is left out: the config has clients 0 to {plan.num_clients - 1}")
        elif name := unreadable(head, "hello", None, ()):
            warn(f"client {client} is left out: what it says of {name!r} cannot be read")
        else:
            found[client] = head
    return found


def _sender(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    def one(server, round, info):
        root = jax.random.key(plan.options.seed)
        return send(plan.method, federation, bucket, plan.channel, server, root, round, info)

    return jax.jit(one)
