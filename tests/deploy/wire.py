"""Both ends of Flower in one process, on loopback."""

import contextlib
import hashlib
import socket
import threading
import time

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedjax_ht.deploy import node
from fedjax_ht.deploy.audit import no_audit
from fedjax_ht.deploy.link import open_link
from fedjax_ht.deploy.mailbox import reply_id_of
from fedjax_ht.deploy.messages import Envelope, to_bytes
from fedjax_ht.deploy.node import responder, take_request
from fedjax_ht.deploy.plan import DeploymentEnded
from tests.deploy.processes import free_port

HELLO = Envelope({"kind": "hello"}, {})
MEGABYTE = 1 << 20


@contextlib.contextmanager
def listening(keys, audit=no_audit, **tls):
    """Opens a link within the block; yields it, its port and the lines that it tells."""
    public = None
    if keys is not None:
        public = {i: public_key_to_bytes(key.public_key()) for i, key in keys.items()}
    port, lines = free_port(), []
    files = tls.pop("certificate", None)
    with open_link("127.0.0.1", port, files, public, lines.append, audit=audit, **tls) as link:
        yield link, port, lines


@contextlib.contextmanager
def attending(port, key, answer, patience=0.0, authority=None, **options):
    """Runs a client within the block; yields the lines that it tells, and how it ended."""
    over, lines = threading.Event(), []

    def attend():
        try:
            server, answers = f"127.0.0.1:{port}", responder(answer)
            told = lines.append
            node.run_node(server, authority, key, answers, over.is_set, told, patience, **options)
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
    def answer(message):
        kind = message.header["kind"]
        return Envelope({"client": i, "kind": kind}, arrays if arrays and kind == "train" else {})

    return answer


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def fleet(port, key=None):
    """Returns a client of Flower's Fleet API that signs with a key, or with a new one."""
    private = key or generate_key_pairs()[0]
    signed = [NodeAuthHttpInterceptor(private, private.public_key())]
    return FleetHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, signed)


class RawNode:
    """A node by hand, which writes into its requests what it likes."""

    def __init__(self, port, key):
        self.port, self.fleet = port, fleet(port, key)
        self.public = public_key_to_bytes(key.public_key())
        request = ActivateNodeRequest(public_key=self.public, heartbeat_interval=30)
        self.node = Node(node_id=self.fleet.ActivateNode(request).node_id)

    def await_message(self):
        """Waits for a message; returns its metadata, with the message taken."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            response = self.fleet.PullMessages(PullMessagesRequest(node=self.node))
            if response.messages_list:
                metadata = response.messages_list[0].metadata
                take_request(self.fleet, self.node, metadata)
                return metadata
            time.sleep(0.02)
        raise AssertionError("no message")

    def announce(self, metadata, tree=None):
        name = reply_id_of(metadata.message_id)
        announced = Metadata()
        announced.CopyFrom(metadata)
        announced.message_id, announced.reply_to_message_id = name, metadata.message_id
        announced.src_node_id, announced.dst_node_id = self.node.node_id, 1
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[Message(metadata=announced, content=RecordDict())],
            message_object_trees=[tree or ObjectTree(object_id=name)],
        )
        return self.fleet.PushMessages(request).session_id

    def push(self, metadata, session, content, name=None):
        request = PushObjectRequest(
            node=self.node,
            run_id=metadata.run_id,
            session_id=session,
            object_id=name or reply_id_of(metadata.message_id),
            object_content=content,
        )
        return self.fleet.PushObject(request).stored

    def answer_hello(self, client_id):
        metadata = self.await_message()
        reply = to_bytes(Envelope({"client": client_id}, {}))
        assert self.push(metadata, self.announce(metadata), reply)


def status_of(call) -> int:
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


def tree_of(name: str, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=name, children=children)


def bomb(levels: int, root: str) -> ObjectTree:
    """Returns a tree of few entries that names 2^levels nodes: a name stands for all below it."""
    inner = tree_of("a" * 64)
    for i in range(levels):
        name = hashlib.sha256(str(i).encode()).hexdigest()
        inner = tree_of(name, inner, tree_of(inner.object_id))
    return tree_of(root, inner)
