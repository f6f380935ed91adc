"""A stranger at a running deployment of processes: Flower's own commands, and endless bytes."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.deploy import processes
from tests.deploy.wire import MEGABYTE, sent_in_vain

APP = """\
[project]
name = "stranger"
version = "1.0.0"
description = "An app that leaves a file"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "stranger:server"
clientapp = "stranger:client"
"""
CODE = """\
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

open({path!r}, "w").write("ran")
server = ServerApp()
client = ClientApp()
"""


@pytest.mark.slow
@pytest.mark.parametrize("secured", [True, False])
def test_a_stranger_gets_nowhere(secured, tmp_path):
    """The stranger has what is public: the address and, with TLS, the authority's certificate."""
    port = processes.made_ready(tmp_path, "fedproto", rounds=2)
    if secured:
        server = processes.start_server(tmp_path, port)
        client = processes.start_client(tmp_path, port, 0)
    else:
        flags = ["--workdir=server", f"--port={port}", "--insecure"]
        server = processes.command(tmp_path, "server", *flags, log="server.log")
        flags = ["--workdir=home0", "--client_id=0", "--data=npz:sites/client_0.npz"]
        flags += [f"--superlink=127.0.0.1:{port}", "--insecure"]
        client = processes.command(tmp_path, "client", *flags, log="client0.log")
    try:
        wait_for_line(tmp_path / "home0" / "audit.jsonl", '"connected"')
        # behind a warning of absent classes its first lines say what was read, as a run's do
        lines = (tmp_path / "client0.log").read_text().splitlines()
        first, second, *_ = (line for line in lines if "] " not in line)
        assert "images of" in first and "classes: " in second
        assert listening_ports(server.pid) == {port} and listening_ports(client.pid) == set()
        before = megabytes(server.pid)
        flower(tmp_path, port, secured)
        commands = ("run app", "list", "supernode list", "supernode register stranger.pub")
        for arguments in commands:
            done = flwr(tmp_path, *arguments.split(), "here")
            assert done.returncode and "404" in done.stdout + done.stderr, (arguments, done)
        if secured:
            log = supernode(tmp_path, port)
            assert "Starting Flower SuperNode" in log and "SuperNode ID" not in log
        else:
            for path in ("fleet/push-object", "control/start-run"):
                assert sent_in_vain(port, f"/v1/{path}", declared=False) < 64 * MEGABYTE
        assert megabytes(server.pid) - before < 100
        assert not (tmp_path / "ran").exists()
        assert server.poll() is None and client.poll() is None
        assert "has disconnected" not in (tmp_path / "server.log").read_text()
    finally:
        processes.end_all(server, client)


@pytest.mark.slow
def test_a_client_that_is_not_let_in_ends_with_exit_code_1(tmp_path):
    """A client with another client's key is left out; one with an unknown key ends."""
    port = processes.made_ready(tmp_path, "fedproto", rounds=2)
    processes.key(tmp_path / "keys", 9)
    server = processes.start_server(tmp_path, port, "--patience=15")
    flags = ["--client_id=0", "--data=npz:sites/client_0.npz", f"--superlink=127.0.0.1:{port}"]
    flags += ["--certificates=certs", "--patience=3"]
    clients = []
    for name, key_file in (("a", "keys/client9"), ("b", "client1")):
        own = [f"--workdir={name}", f"--key={key_file}"]
        clients.append(processes.command(tmp_path, "client", *own, *flags, log=f"{name}.log"))
    try:
        assert clients[0].wait(120) == 1
        assert "for 3 s: it does not know the key" in (tmp_path / "a.log").read_text()
        line = "left out: its key is that of client 1"
        wait_for_line(tmp_path / "b.log", f"client 0 is {line}")
        assert server.wait(120) == 2
        assert f"(client 0) is {line}" in (tmp_path / "server.log").read_text()
    finally:
        processes.end_all(server, *clients)


def wait_for_line(path: Path, arguments: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while arguments not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.2)


def listening_ports(pid: int) -> set[int]:
    inodes = set()
    for process in [pid, *children(pid)]:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(file))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in inodes:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    direct = [int(x) for x in listed.read_text().split()] if listed.exists() else []
    return direct + [x for child in direct for x in children(child)]


def megabytes(pid: int) -> int:
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


def flower(folder: Path, port: int, secured: bool) -> None:
    (folder / "home").mkdir()
    trust = f'root-certificates = "{folder}/certs/ca.crt"' if secured else "insecure = true"
    address = f'[superlink.here]\naddress = "127.0.0.1:{port}"\n{trust}\n'
    (folder / "home" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{address}')
    (folder / "app").mkdir()
    (folder / "app" / "pyproject.toml").write_text(APP)
    (folder / "app" / "stranger.py").write_text(CODE.format(path=str(folder / "ran")))
    processes.key(folder / "home", 9)
    (folder / "home" / "keys" / "client9.pub").rename(folder / "stranger.pub")


def flowers(folder: Path) -> dict[str, str]:
    return os.environ | {"FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0"}


def flwr(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    program = str(Path(sys.executable).with_name("flwr"))
    how = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run([program, *arguments], cwd=folder, env=flowers(folder), **how)


def supernode(folder: Path, port: int, seconds: float = 20.0) -> str:
    """Runs Flower's own node with an unknown key; returns its log."""
    arguments = [str(Path(sys.executable).with_name("flower-supernode"))]
    arguments += [f"--superlink=127.0.0.1:{port}", f"--port={processes.free_port()}"]
    arguments += [f"--root-certificates={folder / 'certs' / 'ca.crt'}"]
    arguments += [f"--auth-supernode-private-key={folder / 'home' / 'client9'}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = flowers(folder) | {"PATH": path}
    with (folder / "supernode.log").open("wb") as log:
        pipes = {"stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(arguments, cwd=folder, env=environment, **pipes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
    return (folder / "supernode.log").read_text()
