"""A client's end of Flower: a SuperNode in the client's own process. Needs the extra `flower`.

It asks the server for messages and answers them with a function of this process. Flower's own
SuperNode fetches an app from the server for every run and executes it; this one never asks for any,
so what runs here is what is installed here. And it listens nowhere: there is no port by which
another user of this machine could take its messages.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.headers import printable

POLL_SECONDS = 0.5
RETRY_SECONDS = 3.0
HEARTBEAT_SECONDS = 15.0
"""The server takes a node for gone that is silent for twice as long."""

Respond = Callable[[Message, Context], Message]


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key.

    Raises:
      ValueError, OSError: it is none, or others may read it. One line.
    """
    if path.stat().st_mode & 0o077:
        raise ValueError(
            f"{path} can be read by others, who could answer as this client; chmod 600 {path}"
        )
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{path} is no private key without a passphrase: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
    return key


def attend(
    address: str,
    certificate: Path | None,
    key: ec.EllipticCurvePrivateKey | None,
    respond: Respond,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
    patience: float,
) -> None:
    """Answers a server's messages until `stop`.

    A server that cannot be reached is tried again for as long as it takes: it may be started later.

    Args:
      address: HOST:PORT of the server.
      certificate: of the authority that the server's certificate is from, None without TLS.
      key: the client's, None for one of its own making.
      respond: answers a message.
      stop: is asked between messages.
      tell: takes a line for whoever is at the client's own machine.
      patience: seconds in which a server that refuses this client is tried again.

    Raises:
      Ended: the server did so all the while.
      ValueError, OSError: the certificate cannot be read. One line.
    """
    private, public = (key, key.public_key()) if key is not None else generate_key_pairs()
    root = certificate.read_bytes() if certificate else None
    interceptors = [NodeAuthHttpInterceptor(private, public)]
    refused_since, silent = None, False
    with FleetHttpClient.from_server_address(
        address, certificate is None, root, interceptors
    ) as client:
        while not stop():
            try:
                with _active(client, public_key_to_bytes(public), registers=key is None) as node:
                    if silent or refused_since is not None:
                        tell(f"connected to {address}")
                    refused_since, silent = None, False
                    _answer_all(client, node, respond, stop)
            except httpx.HTTPStatusError as error:
                now = time.monotonic()
                why = _reason(error)
                if refused_since is None:
                    refused_since = now
                    tell(
                        f"{address} refuses this client ({why}); it is tried again for "
                        f"{patience:g} s"
                    )
                if now - refused_since >= patience:
                    raise Ended(
                        f"{address} has refused this client for {patience:g} s: {why}"
                    ) from None
                _wait(stop)
            except (
                httpx.HTTPError,
                ValueError,
            ) as error:  # ValueError: what answers is no such server
                if not silent:
                    silent = True
                    why = printable(str(error)) or type(error).__name__
                    tell(f"no connection to {address}, trying again: {why}")
                _wait(stop)


def _wait(stop: Callable[[], bool]) -> None:
    late = time.monotonic() + RETRY_SECONDS
    while not stop() and time.monotonic() < late:
        time.sleep(0.1)


def _reason(error: httpx.HTTPStatusError) -> str:
    code = error.response.status_code
    known = {
        401: "it does not know the key",
        412: "another process is there with the key",
        413: "it is too long",
    }
    return known.get(code, f"HTTP {code}")


@contextlib.contextmanager
def _active(client: FleetHttpClient, public: bytes, registers: bool) -> Iterator[Node]:
    """This client as one of the server's nodes within the block; where it `registers`, with a
    key of its own making."""
    if registers:
        with contextlib.suppress(httpx.HTTPStatusError):  # it has done so before
            client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_SECONDS)
    node = Node(node_id=client.ActivateNode(request).node_id)
    over = threading.Event()

    def beat():
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_SECONDS)
        while not over.wait(HEARTBEAT_SECONDS / 3):
            # the loop below notices what is wrong
            with contextlib.suppress(httpx.HTTPError, ValueError):
                client.SendNodeHeartbeat(request)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield node
    finally:
        over.set()
        with contextlib.suppress(httpx.HTTPError, ValueError):
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
            if registers:
                client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node.node_id))


def _answer_all(
    client: FleetHttpClient, node: Node, respond: Respond, stop: Callable[[], bool]
) -> None:
    context = Context(0, node.node_id, {}, RecordDict(), {})
    while not stop():
        response = client.PullMessages(PullMessagesRequest(node=node))
        if not response.messages_list:
            time.sleep(POLL_SECONDS)
            continue
        message = message_from_proto(response.messages_list[0])
        run_id = message.metadata.run_id
        if context.run_id != run_id:  # a secure sum's keys and shares are of one run
            context = Context(run_id, node.node_id, {}, RecordDict(), {})
        # What is wrong with one message is no reason to leave; the server takes it for a lost one.
        with contextlib.suppress(ObjectPullError, ObjectPushError, KeyError, ValueError):
            whole = _pulled(client, node, message, response.message_object_trees[0])
            _push(client, node, respond(whole, context))


def _pulled(client: FleetHttpClient, node: Node, message: Message, tree) -> Message:
    run_id, message_id = message.metadata.run_id, message.metadata.message_id
    pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
    contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull)
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=message_id)
    )
    whole = inflate_object_from_contents(message_id, contents)
    return Message(whole.content, metadata=message.metadata)


def _push(client: FleetHttpClient, node: Node, reply: Message) -> None:
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare = remove_content_from_message(reply) if reply.has_content() else reply
        request = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(bare)],
            message_object_trees=[get_object_tree(reply)],
        )
        response = client.PushMessages(request)
        push = make_push_object_fn_protobuf(
            client.PushObject, node, reply.metadata.run_id, response.session_id
        )
        push_objects(
            get_all_nested_objects(reply), push, object_ids_to_push=set(response.objects_to_push)
        )
