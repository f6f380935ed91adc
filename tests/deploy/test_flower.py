"""A whole deployment: server and clients as processes on loopback, with TLS and keys."""

import datetime
import ipaddress
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.flower import flower_transport, from_records, to_records
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy.sites import assert_same_rows, simulation_of, small_config

CONFIG = """\
from tests.deploy.sites import small_config


def get_config(argument=None):
    return small_config({method!r}, rounds={rounds})
"""


def test_records_carry_an_envelope():
    envelope = Envelope(
        {"kind": "train", "round": 3}, {"000.a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    )
    back = from_records(to_records(envelope))
    assert back.header == envelope.header and back.arrays["000.a"].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    with pytest.raises(ValueError, match="no message of this library"):
        from_records(to_records(envelope).__class__())


class InstantGrid:
    """Grid whose nodes answer at once; node 12 has an error the first time.

    Attributes:
      nodes: node id -> id of the client that it says it is.
      requests: (node id, kind) of all requests.
    """

    def __init__(self):
        self.nodes, self.owners, self.requests = {11: 0, 12: 1, 13: 1}, {}, []

    def expect(self, sizes):
        pass

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, timeout):
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(i)
            node = message.metadata.dst_node_id
            kind = from_records(message.content).header["kind"]
            self.requests.append((node, kind))
            content = to_records(Envelope({"client": self.nodes[node], "kind": kind}, {}))
            is_error = node == 12 and self.requests.count((12, "hello")) == 1
            yield FakeReply(str(i), content, is_error)


class FakeReply:
    """Reply of a node; Flower says of an error that it comes from the server's own node."""

    def __init__(self, message_id, content, is_error):
        self.metadata = SimpleNamespace(src_node_id=1, reply_to_message_id=message_id)
        self.content, self.is_error = content, is_error
        self.error = SimpleNamespace(reason="it has\nexpired", code=3)

    def has_error(self):
        return self.is_error


def test_nodes_are_greeted_once_and_a_client_has_one_node(monkeypatch):
    # Flower's `Message` takes its sender from these
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    lines, grid = [], InstantGrid()
    meet, exchange, _ = flower_transport(grid, 0.0, 1.0, lines.append)
    hello, train = Envelope({"kind": "hello"}, {}), Envelope({"kind": "train"}, {})
    assert sorted(meet(hello, 2)) == [0, 1]
    assert lines == ["node 12 does not answer: it has expired"]
    assert sorted(meet(hello, 0)) == [0, 1]
    assert [node for node, kind in grid.requests if kind == "hello"] == [11, 12, 13, 12]
    assert lines[1:] == ["node 12 (client 1) is left out: client 1 is connected already"]
    assert sorted(exchange({0: train, 7: train}, {})) == [0]
    del grid.nodes[11]
    assert sorted(meet(hello, 0)) == [1] and lines[-1] == "client 0 is gone"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto"])
def test_four_nodes_with_tls_and_keys_end_as_the_simulation(method, tmp_path):
    """One client is killed in round 2 and started again; the server is killed after it, and started
    again."""
    port = made_ready(tmp_path, method, rounds=4)
    server = start_server(tmp_path, port)
    clients = {i: start_client(tmp_path, port, i) for i in range(4)}
    try:
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 1)
        clients[2].kill()
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 2)
        server.send_signal(signal.SIGKILL)
        server.wait()
        clients[2] = start_client(tmp_path, port, 2)
        server = start_server(tmp_path, port)
        assert server.wait(600) == 0, (tmp_path / "server.log").read_text()
    finally:
        end_all(server, *clients.values())
    rows = rows_of(tmp_path)
    missed = [row["round"] - 1 for row in rows[1:] if row["arrived"] == 3]
    assert missed and len(rows) == 5, rows
    config = small_config(method, rounds=4)
    profile = Profile(available=by_trace(4, present_spans(4, 2, missed)))
    _, simulation = simulation_of(config, profile=profile)
    assert_same_rows(*trained_columns(run(simulation, 4)[1], rows))


@pytest.mark.slow
def test_four_nodes_by_secure_sums_end_as_the_simulation(tmp_path):
    """One client is killed after round 1: the sums of rounds 2 and 3 are the other three's."""
    port = made_ready(tmp_path, "fedproto", rounds=3)
    server = start_server(tmp_path, port, "--secure_sums")
    clients = {i: start_client(tmp_path, port, i, "--secure_sums") for i in range(4)}
    try:
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 1)
        clients[2].kill()
        assert server.wait(600) == 0, (tmp_path / "server.log").read_text()
    finally:
        end_all(server, *clients.values())
    rows = rows_of(tmp_path)
    profile = Profile(available=by_trace(4, present_spans(3, 2, [1, 2])))
    _, simulation = simulation_of(small_config("fedproto", rounds=3), profile=profile)
    for simulated, deployed in zip(run(simulation, 3)[1], rows, strict=True):
        assert simulated.get("arrived") == deployed.get("arrived")
        if "loss" in simulated:
            np.testing.assert_allclose(deployed["loss"], simulated["loss"], rtol=1e-4)


def present_spans(num_rounds: int, victim: int, missed: list[int]) -> list[tuple[int, int, int]]:
    """Returns spans for `by_trace`: each of 4 clients is in each round, but the victim in some."""
    spans = []
    for client in range(4):
        for number in range(num_rounds):
            if client != victim or number not in missed:
                spans.append((client, number, number))
    return spans


def made_ready(folder: Path, method: str, rounds: int) -> int:
    """Writes config, certificates, keys and all samples; returns the port to listen at."""
    (folder / "config.py").write_text(CONFIG.format(method=method, rounds=rounds))
    certificates(folder / "certs")
    command(folder, "split", "--workdir=sites").wait()
    for i in range(4):
        key(folder, i)
    return free_port()


def free_port() -> int:
    """Returns a port of this machine that no process listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end_all(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.terminate()
        process.wait(60)


def rows_of(folder: Path) -> list[dict]:
    return [
        json.loads(line) for line in (folder / "server" / "metrics.jsonl").read_text().splitlines()
    ]


def trained_columns(simulated: list[dict], deployed: list[dict]) -> tuple[list[dict], list[dict]]:
    """Returns both histories without "absent", and without scores where a client did not answer."""
    incomplete = {row["round"] for row in deployed if None in row.get("clients", ())}

    def is_kept(row, name):
        is_score = name.startswith("accuracy") and "participants" not in name
        is_missing = row["round"] in incomplete and (is_score or name == "clients")
        return name != "absent" and not is_missing

    kept = []
    for rows in (simulated, deployed):
        kept.append([{k: v for k, v in row.items() if is_kept(row, k)} for row in rows])
    return kept[0], kept[1]


def command(folder: Path, word: str, *flags: str, log: str = "split.log") -> subprocess.Popen:
    arguments = [sys.executable, "-m", "fedjax_ht.runner.command", "deploy", word]
    arguments += ["--config=config.py", *flags]
    with (folder / log).open("ab") as file:
        return subprocess.Popen(
            arguments, cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=environment()
        )


def environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def start_server(folder: Path, port: int, *flags: str) -> subprocess.Popen:
    secured = ["--certificates=certs", "--keys=keys", f"--port={port}"]
    return command(
        folder, "server", "--workdir=server", *secured, "--timeout=120", *flags, log="server.log"
    )


def start_client(folder: Path, port: int, i: int, *flags: str) -> subprocess.Popen:
    flags = [
        f"--client_id={i}",
        f"--data=npz:sites/client_{i}.npz",
        f"--superlink=127.0.0.1:{port}",
        *flags,
    ]
    return command(
        folder,
        "client",
        f"--workdir=home{i}",
        *flags,
        "--certificates=certs",
        f"--key=client{i}",
        log=f"client{i}.log",
    )


def wait_for(folder: Path, server: subprocess.Popen, when, seconds: float = 600.0) -> None:
    """Waits until the rows that the server has written fulfil a condition."""
    end, path = time.monotonic() + seconds, folder / "server" / "metrics.jsonl"
    while time.monotonic() < end:
        assert server.poll() is None, (folder / "server.log").read_text()
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if rows and when(rows):
            return
        time.sleep(0.2)
    raise AssertionError((folder / "server.log").read_text())


def key(folder: Path, i: int) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP384R1())
    (folder / "keys").mkdir(exist_ok=True)
    (folder / f"client{i}").touch(0o600)
    (folder / f"client{i}").write_bytes(
        private.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    )
    public = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (folder / "keys" / f"client{i}.pub").write_bytes(public)


def certificates(folder: Path) -> None:
    """Writes ca.crt, and server.pem with server.key for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))

    def name(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def certificate(subject, public, *extensions):
        made = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("trial CA"))
            .public_key(public)
        )
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
            now + datetime.timedelta(days=2)
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(authority, hashes.SHA256()).public_bytes(form.Encoding.PEM)

    (folder / "ca.crt").write_bytes(
        certificate("trial CA", authority.public_key(), (x509.BasicConstraints(True, None), True))
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    (folder / "server.pem").write_bytes(
        certificate("server", server.public_key(), (address, False))
    )
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(
        server.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL, form.NoEncryption()
        )
    )
