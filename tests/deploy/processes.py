"""Server and clients of a deployment as processes on loopback, with TLS and keys."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

CONFIG = """\
from tests.deploy.sites import small_config


def get_config(argument=None):
    return small_config({method!r}, rounds={rounds}, clients={clients})
"""


def made_ready(folder: Path, method: str, rounds: int, clients: int = 4) -> int:
    """Writes config, certificates, keys and all samples; returns the port to listen at."""
    config = CONFIG.format(method=method, rounds=rounds, clients=clients)
    (folder / "config.py").write_text(config)
    certificates(folder / "certs")
    command(folder, "split", "--workdir=sites").wait()
    for i in range(clients):
        key(folder, i)
    return free_port()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end_all(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.terminate()
        process.wait(60)


def rows_of(folder: Path) -> list[dict]:
    path = folder / "server" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]  # whole lines


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
    """Starts `fedjax-ht deploy WORD` in a folder."""
    arguments = [sys.executable, "-m", "fedjax_ht", "deploy", word]
    arguments += ["--config=config.py", *flags]
    with (folder / log).open("ab") as file:
        return subprocess.Popen(
            arguments, cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=environment()
        )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def run_apart(module: str, folder: Path, *more: str) -> None:
    """Runs a module on a folder in a process that compiles as the deployment's processes do."""
    arguments, root = [sys.executable, "-m", module, folder, *more], Path(__file__).parents[2]
    done = subprocess.run(arguments, cwd=root, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


def start_server(folder: Path, port: int, *flags: str) -> subprocess.Popen:
    own = ["--workdir=server", "--certificates=certs", "--keys=keys", f"--port={port}"]
    return command(folder, "server", *own, "--timeout=120", *flags, log="server.log")


def start_client(folder: Path, port: int, i: int, *flags: str) -> subprocess.Popen:
    own = [f"--client_id={i}", f"--data=npz:sites/client_{i}.npz", f"--workdir=home{i}"]
    own += [f"--superlink=127.0.0.1:{port}", "--certificates=certs", f"--key=client{i}"]
    return command(folder, "client", *own, *flags, log=f"client{i}.log")


def wait_for(folder: Path, server: subprocess.Popen, when, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, (folder / "server.log").read_text()
        rows = rows_of(folder)
        if rows and when(rows):
            return
        time.sleep(0.2)
    raise AssertionError((folder / "server.log").read_text())


def key(folder: Path, i: int) -> None:
    """Writes a client's private key, and its public key into keys/."""
    private = ec.generate_private_key(ec.SECP384R1())
    (folder / "keys").mkdir(exist_ok=True)
    (folder / f"client{i}").touch(0o600)
    (folder / f"client{i}").write_bytes(
        private.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    )
    public = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    (folder / "keys" / f"client{i}.pub").write_bytes(public)


def certificates(folder: Path) -> None:
    """Writes ca.crt, server.pem with server.key for 127.0.0.1, and client.pem with client.key.

    They are made by the commands of docs/deploy.md, and one authority signs both.
    """
    folder.mkdir()
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    page = page.replace("DNS:fl.example.org", "IP:127.0.0.1").replace("clients.", "ca.")
    commands = re.findall(r"^    ((?:openssl|printf) (?:.*\\\n)*.*)$", page, re.MULTILINE)
    script = "\n".join(commands)
    done = subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
