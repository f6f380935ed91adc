"""A client's end of the wire: a SuperNode in the client's own process. Needs the extra `flower`.

It asks the server for messages and answers them with a function of this process. Flower's own
SuperNode fetches an app from the server for every run and executes it; this one never asks for any,
so that what runs here is what is installed here. It listens nowhere: there is no port by which
another user of this machine could take its messages.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message_type import MessageType
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
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

from fedjax_ht.deploy.flower import from_records, to_records
from fedjax_ht.deploy.messages import Envelope, printable
from fedjax_ht.deploy.plan import DeploymentEnded, check_private
from fedjax_ht.deploy.secagg import masked_reply

POLL_SECONDS = 0.5
RETRY_SECONDS = 3.0
HEARTBEAT_SECONDS = 15.0
"""The server takes a node for gone that is silent for twice as long."""
REFUSALS = {
    401: "it does not know the key",
    412: "another process is connected with the key",
    413: "the request is too long",
}

Respond = Callable[[Message, Context], Message]


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads a client's private key.

    Raises:
      ValueError, OSError: the file is none, or others may read it. One line.
    """
    check_private(path, "client")
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{path} is no private key without a passphrase: {problem}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
    return key


def responder(answer: Callable[[Envelope], Envelope]) -> Respond:
    """Returns a function that answers Flower's messages.

    Args:
      answer: takes a request and returns the reply. The header's "masked", whether the reply leaves
        masked, is set here, on the client's side, whatever the server has written there.
    """

    def reply_to(message: Message, masked: bool) -> Envelope:
        request = from_records(message.content)
        return answer(request._replace(header=request.header | {"masked": masked}))

    def masked_answer(message: Message) -> Envelope:
        return reply_to(message, masked=True)

    def respond(message: Message, context: Context) -> Message:
        try:
            in_sum = RECORD_KEY_CONFIGS in message.content.config_records
            if in_sum and message.metadata.message_type == MessageType.TRAIN:
                return masked_reply(message, context, masked_answer)
            records = to_records(reply_to(message, masked=False))
            return Message(records, reply_to=message)
        except Exception as error:  # whatever it is, the client stays for the next message
            is_known = isinstance(error, ValueError | OSError)
            reason = printable(str(error)) if is_known else type(error).__name__
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    return respond


@dataclasses.dataclass
class _Connection:
    """A connection to a server, of which each change is told once.

    Attributes:
      address: HOST:PORT of the server.
      patience: seconds in which a server that refuses this client is tried again.
      tell: takes a line for the people at the client's own machine.
      refused_since: time of the first refusal, None while the server does not refuse.
      is_unreachable: whether the server could not be reached at the last try.
    """

    address: str
    patience: float
    tell: Callable[[str], None]
    refused_since: float | None = None
    is_unreachable: bool = False

    def on_connected(self) -> None:
        if self.is_unreachable or self.refused_since is not None:
            self.tell(f"connected to {self.address}")
        self.refused_since, self.is_unreachable = None, False

    def on_refused(self, error: httpx.HTTPStatusError) -> None:
        code = error.response.status_code
        reason = REFUSALS.get(code, f"HTTP {code}")
        if self.refused_since is None:
            self.refused_since = time.monotonic()
            self.tell(
                f"{self.address} refuses this client ({reason}); trying again for "
                f"{self.patience:g} s"
            )
        if time.monotonic() - self.refused_since >= self.patience:
            raise DeploymentEnded(
                f"{self.address} has refused this client for {self.patience:g} s: {reason}"
            ) from None

    def on_unreachable(self, error: Exception) -> None:
        if not self.is_unreachable:
            reason = printable(str(error)) or type(error).__name__
            self.tell(f"no connection to {self.address}, trying again: {reason}")
        self.is_unreachable = True


def run_node(
    address: str,
    certificate: Path | None,
    key: ec.EllipticCurvePrivateKey | None,
    respond: Respond,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
    patience: float,
) -> None:
    """Answers a server's messages until `stop`.

    A server that cannot be reached is tried again without end: it may be started later.

    Args:
      address: HOST:PORT of the server.
      certificate: file of the authority that signed the server's certificate, None without TLS.
      key: the client's private key, None for a new one.
      respond: answers a message.
      stop: is asked between messages.
      tell: takes a line for the people at the client's own machine.
      patience: seconds in which a server that refuses this client is tried again.

    Raises:
      DeploymentEnded: the server refused this client all the while.
      ValueError, OSError: the certificate cannot be read. One line.
    """
    private, public = (key, key.public_key()) if key is not None else generate_key_pairs()
    root = certificate.read_bytes() if certificate else None
    interceptors = [NodeAuthHttpInterceptor(private, public)]
    connection = _Connection(address, patience, tell)
    with FleetHttpClient.from_server_address(
        address, certificate is None, root, interceptors
    ) as fleet:
        while not stop():
            try:
                with _active_node(fleet, public_key_to_bytes(public)) as node:
                    connection.on_connected()
                    _answer_messages(fleet, node, respond, stop)
            except httpx.HTTPStatusError as error:
                connection.on_refused(error)
                _wait(stop)
            except (httpx.HTTPError, ValueError) as error:  # ValueError: it is no such server
                connection.on_unreachable(error)
                _wait(stop)


def _wait(stop: Callable[[], bool]) -> None:
    end = time.monotonic() + RETRY_SECONDS
    while not stop() and time.monotonic() < end:
        time.sleep(0.1)


@contextlib.contextmanager
def _active_node(fleet: FleetHttpClient, public: bytes) -> Iterator[Node]:
    """Keeps this client online as one of the server's nodes within the block."""
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_SECONDS)
    node = Node(node_id=fleet.ActivateNode(request).node_id)
    is_over = threading.Event()

    def beat():
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_SECONDS)
        while not is_over.wait(HEARTBEAT_SECONDS / 3):
            # the loop over messages meets the same error, and handles it
            with contextlib.suppress(httpx.HTTPError, ValueError):
                fleet.SendNodeHeartbeat(request)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield node
    finally:
        is_over.set()
        with contextlib.suppress(httpx.HTTPError, ValueError):
            fleet.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _answer_messages(
    fleet: FleetHttpClient, node: Node, respond: Respond, stop: Callable[[], bool]
) -> None:
    context = Context(0, node.node_id, {}, RecordDict(), {})
    while not stop():
        response = fleet.PullMessages(PullMessagesRequest(node=node))
        if not response.messages_list:
            time.sleep(POLL_SECONDS)
            continue
        message = message_from_proto(response.messages_list[0])
        run_id = message.metadata.run_id
        if context.run_id != run_id:  # keys and shares of a secure sum belong to one run
            context = Context(run_id, node.node_id, {}, RecordDict(), {})
        # an unreadable message is no reason to leave; the server takes its reply for lost
        with contextlib.suppress(ObjectPullError, ObjectPushError, KeyError, ValueError):
            whole = _pull(fleet, node, message, response.message_object_trees[0])
            _push(fleet, node, respond(whole, context))


def _pull(fleet: FleetHttpClient, node: Node, message: Message, tree) -> Message:
    """Fetches the objects of a message; returns it with its content."""
    run_id, message_id = message.metadata.run_id, message.metadata.message_id
    pull = make_pull_object_fn_protobuf(fleet.PullObject, node, run_id)
    contents = pull_objects([part.object_id for part in iterate_object_tree(tree)], pull)
    fleet.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=message_id)
    )
    whole = cast(Message, inflate_object_from_contents(message_id, contents))
    # Flower declares no argument `metadata`
    return Message(whole.content, metadata=message.metadata)  # pyright: ignore[reportCallIssue]


def _push(fleet: FleetHttpClient, node: Node, reply: Message) -> None:
    """Sends a reply, then those of its objects that the server does not have yet."""
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare = remove_content_from_message(reply) if reply.has_content() else reply
        request = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(bare)],
            message_object_trees=[get_object_tree(reply)],
        )
        response = fleet.PushMessages(request)
        run_id, session_id = reply.metadata.run_id, response.session_id
        push = make_push_object_fn_protobuf(fleet.PushObject, node, run_id, session_id)
        objects = get_all_nested_objects(reply)
        push_objects(objects, push, object_ids_to_push=set(response.objects_to_push))
