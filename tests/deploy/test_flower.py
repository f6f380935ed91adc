"""The whole way: Flower's SuperLink and SuperNodes as processes on loopback, with TLS and keys."""

import datetime
import ipaddress
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.flower import from_records, grid_nodes, overhead, to_records
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy.sites import assert_same_rows, simulation_of, small_config

CONFIG = """\
from tests.deploy.sites import small_config


def get_config(argument=None):
    return small_config({method!r}, rounds={rounds})
"""


def test_records_carry_an_envelope_and_say_what_they_cost():
    envelope = Envelope(
        {"kind": "train", "round": 3}, {"000.a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    )
    back = from_records(to_records(envelope))
    assert back.head == envelope.head and back.arrays["000.a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert 100 < overhead(envelope) < 1000
    with pytest.raises(ValueError, match="no message of this library"):
        from_records(to_records(envelope).__class__())


def test_nodes_are_greeted_once_and_a_client_has_one_node(monkeypatch):
    """A grid that answers at once."""
    for name in ("run_id", "node_id", "task_id"):  # Flower's own processes know who they are
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    class Grid:
        def __init__(self):
            self.nodes, self.owners = {11: 0, 12: 1, 13: 1}, {}

        def expect(self, sizes):
            pass

        def get_node_ids(self):
            return list(self.nodes)

        def send_and_receive(self, messages, timeout):
            for i, message in enumerate(messages):
                message.metadata.__dict__["_message_id"] = str(i)
                node, head = message.metadata.dst_node_id, from_records(message.content).head
                asked.append((node, head["kind"]))
                content = to_records(
                    Envelope({"client": self.nodes[node], "kind": head["kind"]}, {})
                )
                yield FakeReply(
                    str(i), content, failed=(node, asked.count((node, "hello"))) == (12, 1)
                )

    class FakeReply:
        """Of an error Flower says that it comes from its own node."""

        def __init__(self, to, content, failed):
            self.metadata = type("Metadata", (), {"src_node_id": 1, "reply_to_message_id": to})()
            self.content, self.error = (
                content,
                type("Error", (), {"reason": "it has\nexpired", "code": 3})(),
            )
            self.has_error = lambda: failed

    asked, said, grid = [], [], Grid()
    meet, exchange, _ = grid_nodes(grid, 0.0, 1.0, said.append)
    hello = Envelope({"kind": "hello"}, {})
    assert sorted(meet(hello, 2)) == [0, 1] and said == ["node 12 does not answer: it has expired"]
    assert sorted(meet(hello, 0)) == [0, 1]
    assert [node for node, kind in asked if kind == "hello"] == [11, 12, 13, 12]
    assert said[1:] == ["node 12 (client 1) is left out: client 1 is there already"]
    assert sorted(
        exchange({0: Envelope({"kind": "train"}, {}), 7: Envelope({"kind": "train"}, {})}, {})
    ) == [0]
    del grid.nodes[11]
    assert sorted(meet(hello, 0)) == [1] and said[-1] == "client 0 is gone"


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
    spans = [(i, k, k) for i in range(4) for k in range(4) if not (i == 2 and k in missed)]
    profile = Profile(available=by_trace(4, spans))
    _, simulation = simulation_of(config, profile=profile)
    alone = {row["round"] for row in rows if None in row.get("clients", ())}
    assert_same_rows(
        *([as_trained(row, alone) for row in found] for found in (run(simulation, 4)[1], rows))
    )


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
    spans = [(i, k, k) for i in range(4) for k in range(3) if i != 2 or k == 0]
    _, simulation = simulation_of(
        small_config("fedproto", rounds=3), profile=Profile(available=by_trace(4, spans))
    )
    for own, other in zip(run(simulation, 3)[1], rows, strict=True):
        assert own.get("arrived") == other.get("arrived")
        if "loss" in own:
            np.testing.assert_allclose(other["loss"], own["loss"], rtol=1e-4)


def made_ready(folder: Path, method: str, rounds: int) -> int:
    """Config, certificates, keys and everybody's samples; the port to listen at."""
    (folder / "config.py").write_text(CONFIG.format(method=method, rounds=rounds))
    certificates(folder / "certs")
    command(folder, "split", "--workdir=sites").wait()
    for i in range(4):
        key(folder, i)
    return free_port()


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def end_all(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.terminate()
        process.wait(60)


def rows_of(folder: Path) -> list[dict]:
    return [
        json.loads(line) for line in (folder / "server" / "metrics.jsonl").read_text().splitlines()
    ]


def as_trained(row: dict, alone: set[int]) -> dict:
    """Without who was absent, and without the scores of rounds after which a client did not
    answer."""
    scores = [
        k for k in row if k == "clients" or (k.startswith("accuracy") and "participants" not in k)
    ]
    return {
        k: v
        for k, v in row.items()
        if k != "absent" and not (row["round"] in alone and k in scores)
    }


def command(folder: Path, word: str, *flags: str, log: str = "split.log") -> subprocess.Popen:
    words = [sys.executable, "-m", "fedjax_ht.deploy", word, "--config=config.py", *flags]
    with (folder / log).open("ab") as file:
        return subprocess.Popen(
            words, cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=environment()
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
    own = [
        f"--client_id={i}",
        f"--data=npz:sites/client_{i}.npz",
        f"--superlink=127.0.0.1:{port}",
        *flags,
    ]
    return command(
        folder,
        "client",
        f"--workdir=home{i}",
        *own,
        "--certificates=certs",
        f"--key=client{i}",
        log=f"client{i}.log",
    )


def wait_for(folder: Path, server: subprocess.Popen, when, seconds: float = 600.0) -> None:
    """Until the rows that the server has written are so."""
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
    """ca.crt, and server.pem with server.key for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    now, name = (
        datetime.datetime.now(datetime.UTC),
        lambda text: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]),
    )
    authority, own = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))

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
    (folder / "server.pem").write_bytes(certificate("server", own.public_key(), (address, False)))
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(
        own.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL, form.NoEncryption()
        )
    )
