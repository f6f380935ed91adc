"""Connections: strangers' give way, clients stay, and descriptors are left for files."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import PullMessagesRequest

from fedjax_ht.deploy import flower, link
from fedjax_ht.deploy.flower import flower_transport, log_to
from fedjax_ht.deploy.link import (
    PER_NODE,
    RESERVE,
    SPARE,
    STRANGERS,
    Connections,
    listeners,
    most_connections,
)
from fedjax_ht.deploy.messages import Envelope
from tests.deploy.processes import environment, free_port
from tests.deploy.wire import HELLO, RawNode, attending, client, fleet, listening, wait_until

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"

pytestmark = pytest.mark.usefixtures("quick")


def held(port: int, number: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    opened = []
    for _ in range(number):
        opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)))
    return opened


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])
def test_silent_strangers_keep_no_client_out_and_take_no_descriptors(
    keys, certs, monkeypatch, secured
):
    """Four times as many as there may be, before and while a client works.

    By TLS a silent connection never gets as far as HTTP.
    """
    files = (certs / "server.pem", certs / "server.key") if secured else None
    authority = certs / "ca.crt" if secured else None
    monkeypatch.setattr(link, "STRANGERS", 8)
    most = 8 + PER_NODE * len(keys)
    with (
        listening(keys, certificate=files) as (opened, port, lines),
        contextlib.ExitStack() as stack,
    ):
        before = descriptors()
        silent = held(port, 4 * most, stack)
        wait_until(lambda: descriptors() - before - len(silent) <= most)
        with attending(port, keys[0], client(0), authority=authority):
            meet, exchange, *_ = flower_transport(opened, 20.0, 10.0, lines.append)
            assert sorted(meet(HELLO, 1)) == [0]
            silent += held(port, 4 * most, stack)
            train = {0: Envelope({"kind": "train"}, {})}
            assert sorted(exchange(train, {})) == [0]
            wait_until(lambda: descriptors() - before - len(silent) <= most + SPARE)
            assert sum(map(is_open, silent)) <= most and is_open(silent[-1])


def test_a_strangers_connection_is_closed_in_the_end(keys, monkeypatch):
    """One that says nothing, and one whose headers come slowly."""
    monkeypatch.setattr(link, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(link, "SWEEP_SECONDS", 0)
    with listening(keys) as (_, port, _), contextlib.ExitStack() as stack:
        silent, slow = held(port, 2, stack)
        slow.sendall(HEAD)
        assert is_open(silent) and is_open(slow)

        def are_closed():
            with contextlib.suppress(OSError):
                slow.sendall(b"X")
            return not is_open(silent) and not is_open(slow)

        wait_until(are_closed)


def test_one_key_has_no_more_than_a_few_connections(keys):
    """A client with a key that opens many, each with a signed request."""
    with listening(keys) as (opened, port, _), contextlib.ExitStack() as stack:
        raw, before = RawNode(port, keys[0]), descriptors()
        poll = PullMessagesRequest(node=raw.node)
        for _ in range(3 * PER_NODE):
            stack.enter_context(fleet(port, keys[0])).PullMessages(poll)
        # each has two ends in this process
        wait_until(lambda: descriptors() - before <= 3 * PER_NODE + PER_NODE)
        with attending(port, keys[1], client(1)):
            wait_until(lambda: len(opened.online_nodes()) == 2)


@pytest.mark.parametrize(
    "part",
    [b"X: " + b"a" * (1 << 20), b"".join(b"X%d: %s\r\n" % (i, b"a" * 200) for i in range(5000))],
    ids=["one header", "many headers"],
)
def test_headers_and_urls_have_an_end(keys, part):
    with listening(keys) as (_, port, _):
        for start in (HEAD + part, b"POST /" + part.replace(b"\r\n", b"").replace(b" ", b"")):
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                with contextlib.suppress(OSError):
                    for _ in range(20):
                        connection.sendall(start)
                        start = part
                connection.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(12) == b"HTTP/1.1 400"


def test_the_oldest_stranger_gives_way_and_no_client():
    """The table by itself, without sockets."""

    class Fake:
        def __init__(self, number):
            self.address, self.ended = ("192.0.2.1", number), False

        def end(self):
            self.ended = True

    table, fakes = Connections(3), [Fake(i) for i in range(100)]
    assert all(map(table.admit, fakes[:3]))
    table.know(fakes[0].address, 7)
    assert table.admit(fakes[3]) and [f.ended for f in fakes[:4]] == [False, True, False, False]
    table.forget(fakes[1].address)
    assert table.admit(fakes[4]) and fakes[2].ended and not fakes[3].ended
    for fake in fakes[5:]:  # nothing is closed meanwhile
        table.admit(fake)
    assert len(table.since) <= 3 + SPARE and not fakes[0].ended
    many = Connections(100)
    for fake in (fresh := [Fake(i) for i in range(PER_NODE + 2)]):
        many.admit(fake)
        many.know(fake.address, 7)
        many.know(fake.address, 7)
    assert [f.ended for f in fresh] == [True, True] + [False] * PER_NODE
    asyncio.run(table.end_silent())
    assert not fakes[0].ended


def test_a_server_has_the_descriptors_that_it_needs_or_says_so(monkeypatch):
    limits, set_to = {}, []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    limits["now"] = (1024, 1024)
    assert most_connections(4) == STRANGERS + 4 * PER_NODE
    assert most_connections(100) == 1024 - RESERVE - SPARE < STRANGERS + 100 * PER_NODE
    with pytest.raises(OSError, match="may open 1024 files, but a server of 500 clients needs"):
        most_connections(500)
    assert set_to == []
    limits["now"] = (1024, 1 << 20)
    assert most_connections(500) == STRANGERS + 500 * PER_NODE
    assert set_to == [(STRANGERS + 500 * PER_NODE + SPARE + RESERVE, 1 << 20)]
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert most_connections(10**6) == STRANGERS + 10**6 * PER_NODE


def test_an_address_that_is_taken_is_one_line():
    table = Connections(1)
    (taken,) = listeners("127.0.0.1", 0, table)
    taken.listen()
    port = taken.getsockname()[1]
    with taken, pytest.raises(OSError, match=f"the server cannot listen on 127.0.0.1:{port}: "):
        link.open_link("127.0.0.1", port, None, None, print).__enter__()


def test_strangers_lines_in_the_log_have_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "LOG_BYTES", 1000)
    loggers = {name: logging.getLogger(name) for name in ("flwr", "uvicorn", "httpx", "asyncio")}
    before = {name: (x.handlers, x.propagate, x.level) for name, x in loggers.items()}
    try:
        log_to(tmp_path / "flower.log")
        for _ in range(200):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    finally:
        for name, (handlers, propagate, level) in before.items():
            loggers[name].handlers, loggers[name].propagate = handlers, propagate
            loggers[name].setLevel(level)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
    assert len(list(tmp_path.iterdir())) == 2


SERVER = """
import sys, time
from pathlib import Path
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.deploy.link import open_link

with open_link("127.0.0.1", int(sys.argv[1]), None, {0: b"x"}, print):
    print("listening", flush=True)
    while True:
        time.sleep(0.2)
        with atomic_open(Path(sys.argv[2])) as file:
            file.write("a checkpoint")
"""


@pytest.mark.slow
def test_more_silent_connections_than_descriptors_cost_no_checkpoint(tmp_path):
    """A server with the usual limit of 1,024 files."""
    port = free_port()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(tmp_path / "file")],
        env=environment(),
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
    )
    try:
        while b"listening" not in server.stdout.readline():
            assert server.poll() is None
        with contextlib.ExitStack() as stack:
            held(port, 1200, stack)
            time.sleep(2)
            assert server.poll() is None and len(os.listdir(f"/proc/{server.pid}/fd")) < 200
    finally:
        server.kill()
        server.wait()
