"""Both ends of Flower in one process, on loopback."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
from flwr.app import Message
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedjax_ht.deploy import node
from fedjax_ht.deploy.flower import to_records
from fedjax_ht.deploy.link import open_link
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.node import responder
from fedjax_ht.deploy.plan import DeploymentEnded

HELLO = Envelope({"kind": "hello"}, {})
MEGABYTE = 1 << 20


@contextlib.contextmanager
def listening(keys):
    """Opens a link within the block; yields it, its port and the lines that it tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    public = None
    if keys is not None:
        public = {i: public_key_to_bytes(key.public_key()) for i, key in keys.items()}
    lines = []
    with open_link("127.0.0.1", port, None, public, lines.append) as link:
        yield link, port, lines


@contextlib.contextmanager
def attending(port, key, answer, patience=0.0):
    """Runs a client within the block; yields the lines that it tells, and how it ended."""
    over, lines = threading.Event(), []

    def attend():
        try:
            node.run_node(
                f"127.0.0.1:{port}",
                None,
                key,
                responder(answer),
                over.is_set,
                lines.append,
                patience,
            )
        except DeploymentEnded as error:
            lines.append(str(error))

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join(20)
        assert not thread.is_alive()


def client(i, arrays=None):
    """Returns a client's answers, with arrays in its reply to "train"."""

    def answer(message):
        kind = message.header["kind"]
        return Envelope({"client": i, "kind": kind}, arrays if arrays and kind == "train" else {})

    return answer


def wait_until(condition, seconds=20.0):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def fleet(port, key=None):
    """Returns a client of Flower's Fleet API that signs with a key, or with a new one."""
    private = key or generate_key_pairs()[0]
    signed = [NodeAuthHttpInterceptor(private, private.public_key())]
    return FleetHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, signed)


def status_of(call) -> int:
    """Returns the HTTP status of a call that is refused."""
    with pytest.raises(httpx.HTTPStatusError) as error:
        call()
    return error.value.response.status_code


def sent_in_vain(port, path, declared, size=500 * MEGABYTE) -> int:
    """Sends bytes without end; returns how many the server takes before it closes."""
    block, sent = bytes(MEGABYTE), 0
    length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            while sent < size:
                connection.sendall(block if declared else b"%x\r\n%s\r\n" % (len(block), block))
                sent += len(block)
    return sent


def asking(node_id):
    """Returns a message that asks a node who its client is."""
    return Message(to_records(HELLO), dst_node_id=node_id, message_type="query", ttl=5.0)
