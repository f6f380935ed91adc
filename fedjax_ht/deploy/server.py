"""The server of a deployment: its models, its counts of the clients, its compiled programs.

`rounds` plays its rounds.
"""

import functools
import json
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.codes import decoded
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.mesh import client_mesh, collect
from fedjax_ht.core.message_forms import result_form, sends_payload
from fedjax_ht.core.round import send
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.contacts import MOST_SAMPLES, ClientHeaders, Transport, all_headers
from fedjax_ht.deploy.headers import Expected, is_run_name
from fedjax_ht.deploy.noise import (
    LEDGER_FILE,
    Entropy,
    Noise,
    fresh_secret,
    read_ledger,
    update_noise,
)
from fedjax_ht.deploy.plan import Plan, make_models, task_from_json
from fedjax_ht.deploy.samples import server_data
from fedjax_ht.deploy.secure_sums import sum_groups
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.folder import read_json
from fedjax_ht.simulation.engine import first_server
from fedjax_ht.simulation.serving import run_server


class Server(NamedTuple):
    """A deployment's server.

    Attributes:
      plan: the config.
      federation: the models, and the clients of each.
      headers: each client's header when the run began.
      counts: split -> number of samples, int64 [num_clients].
      flops: FLOPs of a round of each client, float64 [num_clients].
      run: name of this run, for the clients' folders.
      forms: bucket name -> the form of its uplinks, as the method's server reads them.
      wire_forms: bucket name -> the form of the messages that carry them, see `core.codes`.
      metrics: bucket name -> names of the metrics of its clients' training.
      groups: name -> ids of the clients whose uplinks are summed; None where uplinks come singly.
      send: bucket name -> compiled (server state, round, info) -> downlink.
      decode: bucket name -> compiled (message, server state, round, info) -> uplink.
      serve: `simulation.serving.run_server`.
      first: `simulation.engine.first_server`.
      pretrained: `Pretrained.variables` of the method, on its device.
      public: the public set, on the server's device; None for methods that read none.
      noise: the noise that the server adds itself; None where it adds none.
      ledger: file of what was sent under noise, see `noise.add_to_ledger`.
      saved: `last_round` of each checkpoint that is kept, int32 [num_clients].
      transport: the functions by which messages reach clients.
      warn: takes a line for whoever watches the server.
      patience: seconds to wait for a client where none can be reached.
      most_samples: most samples that a client may say it has.
      audit: the log of the server.
    """

    plan: Plan
    federation: Federation
    headers: ClientHeaders
    counts: dict[str, np.ndarray]
    flops: np.ndarray
    run: str
    forms: dict[str, PyTree]
    wire_forms: dict[str, PyTree]
    metrics: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[int, ...]] | None
    send: dict[str, Callable]
    decode: dict[str, Callable]
    serve: Callable
    first: Callable
    pretrained: PyTree
    public: Data | None
    noise: Noise | None
    ledger: Path
    saved: deque
    transport: Transport
    warn: Callable[[str], None]
    patience: float
    most_samples: int
    audit: Audit

    def bucket_of(self, client: int) -> Bucket:
        """Returns the bucket of a client."""
        return self.federation.buckets[self.federation.assignment[client]]

    def uplink_form(self, client: int) -> PyTree:
        """Returns shapes and dtypes of a client's uplink."""
        return self.forms[self.bucket_of(client).name]

    def wire_form(self, client: int) -> PyTree:
        """Returns shapes and dtypes of the message that carries a client's uplink."""
        return self.wire_forms[self.bucket_of(client).name]


def make_server(
    plan: Plan,
    transport: Transport,
    run: str,
    *,
    warn: Callable[[str], None],
    folder: Path,
    entropy: Entropy = fresh_secret,
    keep: int = 2,
    patience: float = 0.0,
    most_samples: int = MOST_SAMPLES,
    audit: Audit = no_audit,
) -> Server:
    """Waits for the clients, and makes the models for the task that they report.

    All clients are needed once: what they say of themselves is in `folder` from then on, and a
    server that is started again goes on without those that it cannot reach.

    Args:
      plan: the config.
      transport: the functions by which messages reach clients.
      run: a name for this run, letters and digits.
      warn: takes a line for whoever watches the server.
      folder: the folder of the run.
      entropy: draws the secrets of the server's noise.
      keep: number of checkpoints that a run keeps.
      patience: seconds to wait for a client where none can be reached.
      most_samples: most samples of a split that a client may say it has.
      audit: the log of the server.

    Raises:
      ValueError: a client is missing, two of them have different tasks, or the ledger cannot be
        read. One line.
    """
    if plan.unit is not None:
        read_ledger(folder / LEDGER_FILE)  # refused before any client is asked
    headers = all_headers(
        plan, transport, warn, folder=folder, most_samples=most_samples, audit=audit
    )
    federation = make_models(plan, task_from_json(headers[0]["task"]))
    counts = {
        split: np.array([headers[i]["counts"][split] for i in range(plan.num_clients)], np.int64)
        for split in ClientIndices._fields
    }
    method = plan.method
    results = {b.name: result_form(method, federation, b, plan.channel) for b in federation.buckets}
    forms = {name: result.uplink for name, result in results.items()}
    groups = sum_groups(method, federation, forms) if plan.secure_sums else None
    if groups and (idle := np.flatnonzero(counts["train"] == 0)).size:
        warn(
            "clients without training samples are not asked to train, by --secure_sums: "
            f"{', '.join(map(str, idle))}"
        )
    # what is made of a sum tells no client apart
    outlier_bound = 0.0 if plan.secure_sums else plan.options.outlier_bound
    return Server(
        plan=plan,
        federation=federation,
        headers=headers,
        counts=counts,
        flops=np.array([headers[i]["flops"] for i in range(plan.num_clients)]),
        run=run,
        forms=forms,
        wire_forms={name: result.message for name, result in results.items()},
        metrics={name: tuple(result.metrics) for name, result in results.items()},
        groups=groups,
        send={b.name: _sender(plan, federation, b) for b in federation.buckets},
        decode={b.name: _decoder(plan, federation, b) for b in federation.buckets},
        serve=run_server(method, federation, outlier_bound),
        first=first_server(method, federation),
        pretrained=collect(client_mesh(1), method.needs.pretrained.variables),
        public=server_data(plan.public),
        noise=_server_noise(plan, forms, folder / LEDGER_FILE, entropy),
        ledger=folder / LEDGER_FILE,
        saved=deque(maxlen=keep),
        transport=transport,
        warn=warn,
        patience=patience,
        most_samples=most_samples,
        audit=audit,
    )


def _server_noise(
    plan: Plan, forms: Mapping[str, PyTree], ledger: Path, entropy: Entropy
) -> Noise | None:
    privacy = plan.options.privacy
    if privacy is None or privacy.unit != "client":
        return None
    return update_noise(privacy, any(map(sends_payload, forms.values())), ledger, entropy)


def leave_out(server: Server, client: int, when: str, reason: str) -> None:
    """Tells that a client is left out of a round or an evaluation, and why."""
    server.warn(f"client {client}, {when}: {reason}")
    server.audit("left_out", client=client, when=when, reason=reason)


def expected_entries(server: Server, client: int) -> Expected:
    """Returns the entries that the server expects in a client's replies."""
    bucket = server.bucket_of(client)
    unit = server.plan.unit
    return Expected(
        unit=unit,
        rules=server.plan.method.rules,
        # what noise hides is not told
        metrics=() if unit in ("upload", "sample") else server.metrics[bucket.name],
        counts={split: int(counts[client]) for split, counts in server.counts.items()},
    )


def run_name(folder: Path) -> str:
    """Returns the name of the run in a folder, made at its first start.

    Raises:
      ValueError, OSError: the folder has none that can be read. One line.
    """
    path = folder / "run.json"
    if not path.exists():
        with atomic_open(path) as file:
            json.dump({"run": uuid.uuid4().hex}, file)
    name = read_json(path).get("run")
    if not is_run_name(name):
        raise ValueError(
            f"{path} is damaged: run must be up to 64 letters and digits, by which clients know "
            "their states; put it back, or choose another --workdir"
        )
    return name


def _sender(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    return jax.jit(functools.partial(_send_downlink, plan, federation, bucket))


def _send_downlink(plan: Plan, federation: Federation, bucket: Bucket, server, round, info):
    root = jax.random.key(plan.options.seed)
    return send(
        plan.method,
        federation,
        bucket,
        plan.channel,
        server=server,
        root=root,
        round=round,
        info=info,
    )


def _decoder(plan: Plan, federation: Federation, bucket: Bucket) -> Callable:
    def decode(message, server, round, info):
        # the downlink that the client answers, made again: nothing need be kept for it
        downlink = _send_downlink(plan, federation, bucket, server=server, round=round, info=info)
        root, code = jax.random.key(plan.options.seed), plan.method.wire.code
        assert code is not None  # nothing else is decoded
        return decoded(code, bucket, message, downlink=downlink, root=root, round=round, info=info)

    return jax.jit(decode)
