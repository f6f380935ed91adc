"""The server's end of Flower: its SuperLink in this process, with nothing but the gate outside.

What Flower's own commands do by its Control and Runtime APIs, starting runs and exchanging
messages, is done here by calls. No socket answers them: there is nothing that another user of this
machine could ask. Needs the extra `flower`.
"""

import base64
import binascii
import contextlib
import datetime
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_key
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    ErrorCode,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from google.protobuf.message import DecodeError

from fedjax_ht.deploy.gate import CALLS, UNKEYED, Allowance, gate
from fedjax_ht.deploy.headers import printable

FRESH_SECONDS = 60.0
"""How far a request's signed time may be from this machine's."""
HEARTBEAT_SECONDS = 10.0
POLL_SECONDS = 0.2
START_SECONDS = 60.0
OBJECT_SECONDS = 60.0
"""How long the rest of an answer may take once its first part is there."""
FRAMING = 1 << 20
"""Bytes of an upload besides the numbers in it and its header, at most."""


class Link(NamedTuple):
    """A running SuperLink with one run, as the parts of Flower's `Grid` that a deployment uses.

    Attributes:
      get_node_ids: () -> the nodes that are online.
      send_and_receive: (messages, timeout) -> the replies, each as from the node that was asked.
      owners: node -> the client whose key it has; {} without keys.
      expect: ({node: bytes}) -> None, how long the next answer of each may be.
    """

    get_node_ids: Callable[[], list[int]]
    send_and_receive: Callable[..., list[Message]]
    owners: Mapping[int, int]
    expect: Callable[[Mapping[int, int]], None]


def read_keys(folder: Path) -> dict[int, bytes]:
    """Reads the clients' public keys: client id -> key. The id is the number at the end of a file's
    name: client3.pub is client 3's.

    Raises:
      ValueError, OSError: a file is no such key, or has no number or another's. One line.
    """
    keys: dict[int, bytes] = {}
    for path in sorted(folder.glob("*.pub")):
        number = re.search(r"(\d{1,9})$", path.stem)
        if number is None:
            raise ValueError(
                f"{path}: its name must end with the id of the client, such as client3.pub"
            )
        client = int(number[1])
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(
                f"{path} is no public key of ssh-keygen: {printable(str(error))}"
            ) from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"{path} is no ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
        public = public_key_to_bytes(key)
        if client in keys or public in keys.values():
            raise ValueError(f"{path}: client {client} has two keys, or two clients have this one")
        keys[client] = public
    if not keys:
        raise ValueError(
            f"{folder} has no keys; the public keys of the clients belong there, client0.pub and "
            "so on"
        )
    return keys


@contextlib.contextmanager
def opened(
    host: str,
    port: int,
    certificate: tuple[Path, Path] | None,
    keys: Mapping[int, bytes] | None,
    tell: Callable[[str], None],
) -> Iterator[Link]:
    """Listens at an address within the block.

    Args:
      host, port: the address.
      certificate: the server's certificate and its private key, None without TLS.
      keys: client id -> its public key; None lets in whoever comes.
      tell: takes a line for whoever watches.

    Raises:
      OSError: it cannot listen there. One line.
    """
    app = create_app()
    app.state.enable_supernode_auth = keys is not None
    state, allowance, long = app.state.linkstate_factory.state(), Allowance(), set()
    owners = {_registered(state, key): client for client, key in (keys or {}).items()}
    identify = functools.partial(signing_node, state, keys is not None)
    calls = CALLS if keys is not None else CALLS | UNKEYED
    files = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]} if certificate else {}
    guarded = gate(app, identify, is_answer, allowance, calls, long.add)
    config = uvicorn.Config(
        guarded, host, port, ws="none", access_log=False, log_config=None, **files
    )
    server = uvicorn.Server(config)
    over = threading.Event()
    with _listening(server, f"{host}:{port}"), _running(state, over) as run_id:
        due: dict[int, int] = {}

        def expect(sizes: Mapping[int, int]) -> None:
            due.clear()
            due.update(sizes)

        def send_and_receive(messages: list[Message], *, timeout: float) -> list[Message]:
            for message in messages:
                node = message.metadata.dst_node_id
                allowance.grant(node, due.get(node, 0) + FRAMING)
            try:
                return exchange(state, run_id, messages, timeout)
            finally:
                for node in sorted(long):
                    tell(
                        f"{_named(node, owners)} has sent more bytes than it may, and they were "
                        "not read"
                    )
                long.clear()

        yield Link(lambda: sorted(state.get_nodes(run_id)), send_and_receive, owners, expect)


def _named(node: int, owners: Mapping[int, int]) -> str:
    return f"client {owners[node]}" if node in owners else f"node {node}"


def _registered(state: LinkState, key: bytes) -> int:
    return state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)


def signing_node(state: LinkState, keyed: bool, headers: Mapping[bytes, bytes]) -> int | None:
    """The node whose key has signed a request's time, see `gate.Identify`.

    Args:
      state: Flower's.
      keyed: whether a key must be registered.
      headers: the request's.
    """
    try:
        public, signature = (
            base64.b64decode(headers[name.encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        node = state.get_node_id_by_public_key(public)
        if keyed and node is None:
            return None
        stamp = headers[TIMESTAMP_HEADER.encode()]
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(
            stamp.decode("ascii")
        )
        fresh = abs(age.total_seconds()) <= FRESH_SECONDS
        signed = fresh and verify_signature(bytes_to_public_key(public), stamp, signature)
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm, binascii.Error):
        return None
    return (node or 0) if signed else None


def is_answer(name: str, node: int, body: bytes) -> bool:
    """Returns whether a request is no message, or a node's own answer to one. Flower would take a
    message that says that it is the server's, and hand it to another client."""
    if name != "push-messages":
        return True
    try:
        messages = PushMessagesRequest.FromString(body).messages_list
    except DecodeError:
        return False
    return all(m.metadata.src_node_id == node and m.metadata.reply_to_message_id for m in messages)


@contextlib.contextmanager
def _listening(server: uvicorn.Server, address: str) -> Iterator[None]:
    problems: list[BaseException] = []

    def serve():
        try:
            server.run()
        except (SystemExit, Exception) as error:  # uvicorn exits where it cannot bind
            problems.append(error)

    thread = threading.Thread(target=serve, name="link", daemon=True)
    thread.start()
    late = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > late:
            why = f": {printable(str(problems[0]))}" if problems else ""
            raise OSError(f"the server cannot listen at {address}{why}; flower.log says more")
        time.sleep(0.05)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(5.0)


@contextlib.contextmanager
def _running(state: LinkState, over: threading.Event) -> Iterator[int]:
    """A run of this process within the block; its id."""
    run_id = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    (run,) = state.get_run_info(run_ids=[run_id])
    task_id = run.primary_task_id
    state.claim_task(task_id)
    state.activate_task(task_id)
    # Messages are made by whom Flower takes this process for.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
        run_id,
        SUPERLINK_NODE_ID,
        task_id,
    )

    def beat():
        while not over.wait(HEARTBEAT_SECONDS):
            state.acknowledge_task_heartbeat(task_id)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield run_id
    finally:
        over.set()


def exchange(
    state: LinkState, run_id: int, messages: list[Message], timeout: float
) -> list[Message]:
    """Sends messages to nodes and waits for their replies.

    Args:
      state: Flower's.
      run_id: the run's.
      messages: one for a node.
      timeout: seconds to wait.

    Returns:
      Replies of those that have answered, or an error in place of what cannot be read. Their
      metadata are the SuperLink's: a reply is from the node that was asked, whatever its sender
      writes into it.
    """
    waiting = {_sent(state, run_id, message): message for message in messages}
    replies, end = [], time.monotonic() + timeout
    while True:
        for message_id, message in list(waiting.items()):
            reply = _received(state, run_id, message_id, message, end)
            if reply is not None:
                del waiting[message_id]
                replies.append(reply)
        if not waiting or time.monotonic() > end:
            state.delete_messages(set(waiting))
            return replies
        time.sleep(POLL_SECONDS)


def _sent(state: LinkState, run_id: int, message: Message) -> str:
    with no_object_id_recompute():
        message_id = message.metadata.__dict__["_message_id"] = message.object_id
        session = state.start_session(run_id)
        bare, objects = remove_content_from_message(message), get_all_nested_objects(message)
        _, missing = state.store_message_and_object_tree(bare, get_object_tree(message), session)
        for object_id in missing:
            state.store_object(run_id, session, object_id, objects[object_id].deflate())
    return message_id


def _received(
    state: LinkState, run_id: int, message_id: str, asked: Message, end: float
) -> Message | None:
    """The reply to a message, None where there is none yet."""
    replies = state.get_message_res({message_id}, run_id)
    if not replies:
        return None
    (reply,) = replies
    content = error = None
    try:
        tree = state.object_store.get_object_tree(reply.metadata.message_id)
        contents = _contents(
            state, run_id, [node.object_id for node in iterate_object_tree(tree)], end
        )
        read = inflate_object_from_contents(reply.metadata.message_id, contents)
        if read.has_error():
            error = Error(int(read.error.code), printable(str(read.error.reason or "")))
        else:
            content = read.content
    except Exception as problem:  # it inflates what a client wrote, and no client may end the run
        content, error = (
            None,
            Error(ErrorCode.MESSAGE_UNAVAILABLE, f"it cannot be read: {type(problem).__name__}"),
        )
    state.object_store.delete(reply.metadata.message_id)
    state.delete_messages({message_id})
    metadata = reply.metadata
    metadata.__dict__["_src_node_id"] = asked.metadata.dst_node_id
    metadata.__dict__["_reply_to_message_id"] = message_id
    return (
        Message(error, metadata=metadata)
        if content is None
        else Message(content, metadata=metadata)
    )


def _contents(state: LinkState, run_id: int, ids: list[str], end: float) -> dict[str, bytes]:
    """Objects by id, once all of them are there."""
    late = min(time.monotonic() + OBJECT_SECONDS, end)
    contents = {}
    for object_id in ids:
        while not (content := state.get_object(run_id, object_id)):
            if content is None or time.monotonic() > late:
                raise TimeoutError(object_id)
            time.sleep(POLL_SECONDS / 10)
        contents[object_id] = content
    return contents
