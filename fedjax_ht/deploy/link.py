"""The server's end of the wire: Flower's SuperLink in this process, behind a gate.

What Flower's own commands do by its Control and Runtime APIs, starting runs and exchanging
messages, is done here by calling its functions. No socket answers these APIs, so that nothing on
this machine or elsewhere can ask them. Needs the extra `flower`.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import uvicorn
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, ErrorCode
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app

from fedjax_ht.deploy.gate import Allowance, gate, is_own_reply, register_node, signing_node
from fedjax_ht.deploy.messages import printable

FRAMING_BYTES = 1 << 20
"""Most bytes of an upload besides its header and the numbers in it."""
HEARTBEAT_SECONDS = 10.0
START_SECONDS = 60.0
POLL_SECONDS = 0.2
OBJECT_SECONDS = 60.0
"""How long the rest of a reply may take once its first part is there."""


class Link(NamedTuple):
    """A running SuperLink with one run: the parts of Flower's `Grid` that a deployment uses.

    Attributes:
      get_node_ids: () -> ids of the nodes that are online.
      send_and_receive: (messages, timeout) -> replies, each as from the node that was asked.
      owners: node id -> id of the client whose key it has; {} without a list of keys.
      expect: {node id: bytes} -> None; sets how long the next reply of each node may be.
    """

    get_node_ids: Callable[[], list[int]]
    send_and_receive: Callable[..., list[Message]]
    owners: Mapping[int, int]
    expect: Callable[[Mapping[int, int]], None]


@contextlib.contextmanager
def open_link(
    host: str,
    port: int,
    certificate: tuple[Path, Path] | None,
    keys: Mapping[int, bytes] | None,
    tell: Callable[[str], None],
) -> Iterator[Link]:
    """Listens at an address within the block.

    Args:
      host, port: the address.
      certificate: files of the server's certificate and its private key, None without TLS.
      keys: client id -> its public key; None lets every key in.
      tell: takes a line for whoever watches the server.

    Raises:
      OSError: the server cannot listen there. One line.
    """
    app = create_app()
    app.state.enable_supernode_auth = True  # no node registers or removes itself by a call
    state, allowance = app.state.linkstate_factory.state(), Allowance()
    owners = {register_node(state, key): client for client, key in (keys or {}).items()}
    identify = functools.partial(signing_node, state, keys is not None)
    too_long: set[int] = set()
    guarded = gate(app, identify, is_own_reply, allowance, too_long.add)
    chain, key = certificate or (None, None)
    config = uvicorn.Config(
        guarded,
        host,
        port,
        ws="none",
        access_log=False,
        log_config=None,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    with _listening(uvicorn.Server(config), f"{host}:{port}"), _running(state) as run_id:
        expected: dict[int, int] = {}

        def get_node_ids() -> list[int]:
            return sorted(state.get_nodes(run_id))

        def expect(sizes: Mapping[int, int]) -> None:
            expected.clear()
            expected.update(sizes)

        def send(messages: list[Message], *, timeout: float) -> list[Message]:
            for message in messages:
                node = message.metadata.dst_node_id
                allowance.grant(node, expected.get(node, 0) + FRAMING_BYTES)
            try:
                return send_and_receive(state, run_id, messages, timeout)
            finally:
                for node in sorted(too_long):
                    name = f"client {owners[node]}" if node in owners else f"node {node}"
                    tell(f"{name} has sent more bytes than it may; they were not read")
                too_long.clear()

        yield Link(get_node_ids=get_node_ids, send_and_receive=send, owners=owners, expect=expect)


@contextlib.contextmanager
def _listening(server: uvicorn.Server, address: str) -> Iterator[None]:
    """Runs the server in a thread within the block."""
    problems: list[BaseException] = []

    def serve():
        try:
            server.run()
        except (SystemExit, Exception) as error:  # uvicorn exits where it cannot bind
            problems.append(error)

    thread = threading.Thread(target=serve, name="link", daemon=True)
    thread.start()
    end = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            reason = f": {printable(str(problems[0]))}" if problems else ""
            raise OSError(f"the server cannot listen at {address}{reason}; see flower.log")
        time.sleep(0.05)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(5.0)


@contextlib.contextmanager
def _running(state: LinkState) -> Iterator[int]:
    """Starts Flower's run of this process and keeps it alive within the block; yields its id."""
    run_id = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    (run,) = state.get_run_info(run_ids=[run_id])
    task_id = run.primary_task_id
    assert task_id is not None  # as of every run that was created
    state.claim_task(task_id)
    state.activate_task(task_id)
    # Flower's `Message` takes its sender and run from these
    TaskIdentity.run_id, TaskIdentity.node_id = run_id, SUPERLINK_NODE_ID
    TaskIdentity.task_id = task_id
    is_over = threading.Event()

    def beat():
        while not is_over.wait(HEARTBEAT_SECONDS):
            state.acknowledge_task_heartbeat(task_id)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield run_id
    finally:
        is_over.set()


def send_and_receive(
    state: LinkState, run_id: int, messages: list[Message], timeout: float
) -> list[Message]:
    """Sends messages to nodes and waits for their replies.

    Args:
      state: of Flower's SuperLink.
      run_id: id of its run.
      messages: one for each node.
      timeout: seconds to wait.

    Returns:
      Replies of the nodes that have answered; an error in place of an unreadable one. Each is as
      from the node that was asked, whatever its sender wrote into its metadata.
    """
    waiting = {_send(state, run_id, message): message for message in messages}
    replies, end = [], time.monotonic() + timeout
    while True:
        for message_id, message in list(waiting.items()):
            reply = _receive(state, run_id, message_id, message, end)
            if reply is not None:
                del waiting[message_id]
                replies.append(reply)
        if not waiting or time.monotonic() > end:
            state.delete_messages(set(waiting))
            return replies
        time.sleep(POLL_SECONDS)


def _send(state: LinkState, run_id: int, message: Message) -> str:
    """Stores a message and its objects for its node; returns the message's id."""
    # as Flower's own `HttpGrid` does over the wire: the id is a hash of the content
    with no_object_id_recompute():
        message_id = message.metadata.__dict__["_message_id"] = message.object_id
        session = state.start_session(run_id)
        bare, objects = remove_content_from_message(message), get_all_nested_objects(message)
        _, missing = state.store_message_and_object_tree(bare, get_object_tree(message), session)
        for object_id in missing:
            state.store_object(run_id, session, object_id, objects[object_id].deflate())
    return message_id


def _receive(
    state: LinkState, run_id: int, message_id: str, request: Message, end: float
) -> Message | None:
    """Returns the reply to a message, None where there is none yet."""
    replies = state.get_message_res({message_id}, run_id)
    if not replies:
        return None
    (reply,) = replies
    metadata = reply.metadata
    try:
        tree = state.object_store.get_object_tree(metadata.message_id)
        ids = [node.object_id for node in iterate_object_tree(tree)]
        contents = _receive_objects(state, run_id, ids, end)
        read = cast(Message, inflate_object_from_contents(metadata.message_id, contents))
        if read.has_error():
            body = Error(int(read.error.code), printable(str(read.error.reason or "")))
        else:
            body = read.content
    # a client's bytes are inflated here, and no client may end the run
    except Exception as error:
        reason = f"it cannot be read: {type(error).__name__}"
        body = Error(ErrorCode.MESSAGE_UNAVAILABLE, reason)
    state.object_store.delete(metadata.message_id)
    state.delete_messages({message_id})
    # the metadata's setters refuse these two
    metadata.__dict__["_src_node_id"] = request.metadata.dst_node_id
    metadata.__dict__["_reply_to_message_id"] = message_id
    # Flower declares no argument `metadata`
    return Message(body, metadata=metadata)  # pyright: ignore[reportCallIssue]


def _receive_objects(state: LinkState, run_id: int, ids: list[str], end: float) -> dict[str, bytes]:
    """Waits for objects, which a node pushes after the message that names them; {id: bytes}."""
    end = min(time.monotonic() + OBJECT_SECONDS, end)
    contents = {}
    for object_id in ids:
        while not (content := state.get_object(run_id, object_id)):
            if content is None or time.monotonic() > end:
                raise TimeoutError(object_id)
            time.sleep(POLL_SECONDS / 10)
        contents[object_id] = content
    return contents
