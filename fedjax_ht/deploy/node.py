"""A client's end of the wire: a SuperNode in the client's own process. Needs the extra `flower`.

It polls the server for messages and answers them with a function of this process. Flower's own
SuperNode fetches an app from the server for every run and executes it; this one never requests any,
so that only installed code runs here. It does not listen: there is no port by which another user of
this machine could take its messages.
"""

import contextlib
import dataclasses
import datetime
import email.utils
import functools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.gate import CLOCK_SECONDS
from fedjax_ht.deploy.mailbox import ENDED, reply_id_of
from fedjax_ht.deploy.masking import STAGE, masked_reply
from fedjax_ht.deploy.messages import (
    Envelope,
    from_bytes,
    is_count,
    message_bytes,
    printable,
    to_bytes,
)
from fedjax_ht.deploy.plan import DeploymentEnded

RESPONSE_BYTES = 1 << 14
"""Most bytes of a response without a server's message, and around one that has it."""
RESPONSE_SECONDS = 30.0
"""How long a server may be silent within a response."""
POLL_SECONDS = 0.5
RETRY_SECONDS = 3.0
LEAVE_SECONDS = 30.0
"""How long a finished reply is announced to a server that cannot be reached."""
HEARTBEAT_SECONDS = 15.0
"""The server considers a node gone if it is silent for twice as long."""
REFUSALS = {
    401: "it does not know the key",
    412: "another process is connected with the key",
    413: "the request is too long",
}
MAX_BYTES = 1 << 24
"""Default for the most bytes of a message's arrays."""
Respond = Callable[[Envelope, Context], Envelope]


def take_request(fleet: FleetHttpClient, node: Node, metadata: Metadata) -> bytes:
    """Fetches a message from the server."""
    run_id, name = metadata.run_id, metadata.message_id
    request = PullObjectRequest(node=node, run_id=run_id, object_id=name)
    content = fleet.PullObject(request).object_content
    fleet.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=name)
    )
    return content


def leave_reply(fleet: FleetHttpClient, node: Node, metadata: Metadata, reply: bytes) -> None:
    """Announces a reply to the message with this metadata, and then sends it."""
    name = reply_id_of(metadata.message_id)
    announced = Metadata()
    # with the request's own times, so that this machine's clock does not matter
    announced.CopyFrom(metadata)
    announced.message_id, announced.reply_to_message_id = name, metadata.message_id
    announced.src_node_id, announced.dst_node_id = node.node_id, SUPERLINK_NODE_ID
    session_id = _announce(
        fleet,
        PushMessagesRequest(
            node=node,
            messages_list=[Message(metadata=announced, content=ProtoRecordDict())],
            message_object_trees=[ObjectTree(object_id=name)],
        ),
    )
    fleet.PushObject(
        PushObjectRequest(
            node=node,
            run_id=metadata.run_id,
            session_id=session_id,
            object_id=name,
            object_content=reply,
        )
    )


def _announce(fleet: FleetHttpClient, request: PushMessagesRequest) -> str:
    """Announces a reply, and retries for a while: training may have taken long.

    An announcement that did arrive is refused when it is repeated, like any second one. The upload
    itself is not retried, since the server counts its bytes.
    """
    end = time.monotonic() + LEAVE_SECONDS
    while True:
        try:
            return fleet.PushMessages(request).session_id
        except httpx.TransportError:
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_SECONDS)


class Bounded:
    """Sends Flower's requests, and reads no more of a response than allowed.

    No redirect is followed, since a signed request is for one server, and nothing is decompressed.

    Attributes:
      client: the HTTP connections.
      max_bytes: most bytes of a response that carries a message.
    """

    def __init__(self, client: httpx.Client, max_bytes: int):
        self.client, self.max_bytes = client, max_bytes

    def intercept(self, context: Any, call_next: Callable) -> httpx.Response:
        """Sends a request in place of Flower's own client, as its last interceptor."""
        limit = self.max_bytes if context.rpc_method.endswith("/PullObject") else RESPONSE_BYTES
        request = context.request
        request.headers["accept-encoding"] = "identity"
        request.extensions["timeout"] = httpx.Timeout(RESPONSE_SECONDS).as_dict()
        response = self.client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx.DecodingError(
                    "the server compresses its responses, which this client cannot read"
                )
            parts, size = [], 0
            for part in response.iter_raw():
                size += len(part)
                if size > limit:
                    raise httpx.RemoteProtocolError(f"more than {limit} bytes in a response")
                parts.append(part)
        finally:
            response.close()
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            content=b"".join(parts),
            request=request,
        )


def http_client(root: str | None, identity: tuple[Path, Path] | None = None) -> httpx.Client:
    """Returns the HTTP connections to a server.

    Args:
      root: certificate of the authority that signed the server's; None without TLS.
      identity: files of the client's own certificate and key, for a server that requires one.

    Raises:
      OSError: a certificate is invalid, or the key does not match it. One line.
    """
    verify: ssl.SSLContext | bool = False
    if root is not None:
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verify.load_verify_locations(cadata=root)
        if identity is not None:
            verify.load_cert_chain(*identity)
    # without TLS the server is on this machine, where no proxy leads
    return httpx.Client(verify=verify, follow_redirects=False, trust_env=root is not None)


def responder(answer: Callable[[Envelope], Envelope]) -> Respond:
    """Returns a function that answers the server's messages.

    Args:
      answer: takes a request and returns the reply. The header's "masked", whether the reply leaves
        masked, is set here by the client, whatever the server has written there.
    """

    def reply_to(request: Envelope, masked: bool) -> Envelope:
        return answer(request._replace(header=request.header | {"masked": masked}))

    def respond(request: Envelope, context: Context) -> Envelope:
        try:
            if STAGE in request.header:
                return masked_reply(request, context, functools.partial(reply_to, masked=True))
            return reply_to(request, masked=False)
        except Exception as error:  # whatever it is, the client stays ready for the next message
            is_known = isinstance(error, ValueError | OSError)
            reason = printable(str(error)) if is_known else type(error).__name__
            return Envelope({"error": reason}, {})

    return respond


@dataclasses.dataclass
class _Connection:
    """A connection to a server, which reports each change once.

    Attributes:
      address: HOST:PORT of the server.
      patience: seconds for which a server that refuses this client is tried again.
      tell: called with a message for the client's operator.
      audit: the client's log.
      refused_since: time of the first refusal in a row; None if the last try met none.
      is_unreachable: True if the last try did not reach the server.
    """

    address: str
    patience: float
    tell: Callable[[str], None]
    audit: Audit
    refused_since: float | None = None
    is_unreachable: bool = False

    def on_connected(self) -> None:
        if self.is_unreachable or self.refused_since is not None:
            self.tell(f"connected to {self.address}")
        self.audit("connected", server=self.address)
        self.refused_since, self.is_unreachable = None, False

    def on_refused(self, error: httpx.HTTPStatusError) -> None:
        code = error.response.status_code
        reason = REFUSALS.get(code, f"HTTP {code}")
        if code == 401:
            reason = _clock_problem(error.response) or reason
        if error.response.has_redirect_location:
            reason = "it redirects this client, which does not follow"
        if self.refused_since is None:
            self.refused_since, self.is_unreachable = time.monotonic(), False
            self.audit("refused", server=self.address, reason=reason)
            self.tell(
                f"{self.address} refuses this client ({reason}); retrying for {self.patience:g} s"
            )
        if time.monotonic() - self.refused_since >= self.patience:
            raise DeploymentEnded(
                f"{self.address} has refused this client for {self.patience:g} s: {reason}"
            ) from None

    def on_unreachable(self, error: Exception) -> None:
        if not self.is_unreachable:
            reason = printable(str(error)) or type(error).__name__
            self.audit("unreachable", server=self.address, reason=reason)
            self.tell(f"no connection to {self.address}, retrying: {reason}")
        self.refused_since, self.is_unreachable = None, True


def _clock_problem(response: httpx.Response) -> str:
    """Returns how far this machine's clock is off the server's; "" if the server accepts it."""
    try:
        server_time = email.utils.parsedate_to_datetime(response.headers.get("date", ""))
        ahead = (datetime.datetime.now(datetime.UTC) - server_time).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a zone
        return ""
    # the header has whole seconds, and is as old as the response's transfer
    if abs(ahead) < CLOCK_SECONDS - 1:
        return ""
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {direction} the server's, more than "
        f"the {CLOCK_SECONDS:g} s allowed; set it"
    )


def run_node(
    address: str,
    certificate: Path | None,
    key: ec.EllipticCurvePrivateKey | None,
    respond: Respond,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
    patience: float,
    *,
    identity: tuple[Path, Path] | None = None,
    max_bytes: int = MAX_BYTES,
    audit: Audit = no_audit,
) -> None:
    """Answers a server's messages until `stop`.

    A server that cannot be reached is retried forever, since it may start later.

    Args:
      address: HOST:PORT of the server.
      certificate: file of the authority that signed the server's certificate; None without TLS.
      key: the client's private key; None for a new one.
      respond: answers a message.
      stop: called between messages; True ends the function.
      tell: called with a message for the client's operator.
      patience: seconds for which a server that refuses this client is tried again.
      identity: files of the client's own certificate and key, for a server that requires one.
      max_bytes: most bytes of the arrays in a server's message, see `messages.max_bytes`.
      audit: the client's log.

    Raises:
      DeploymentEnded: the server refused this client for `patience` seconds.
      ValueError, OSError: the certificate cannot be read. One line.
    """
    private, public = (key, key.public_key()) if key is not None else generate_key_pairs()
    root = certificate.read_text() if certificate else None
    connection = _Connection(address, patience, tell, audit)
    bounded = Bounded(http_client(root, identity), message_bytes(max_bytes) + RESPONSE_BYTES)
    interceptors = [NodeAuthHttpInterceptor(private, public), bounded]
    fleet = FleetHttpClient.from_server_address(address, root is None, None, interceptors)
    with bounded.client, fleet:
        while not stop():
            try:
                with _active_node(fleet, public_key_to_bytes(public)) as node:
                    connection.on_connected()
                    _answer_messages(fleet, node, _audited(respond, audit), stop)
            except httpx.HTTPStatusError as error:
                connection.on_refused(error)
                _wait(stop)
            except (httpx.HTTPError, ValueError) as error:  # ValueError: it is not such a server
                connection.on_unreachable(error)
                _wait(stop)


def _audited(respond: Respond, audit: Audit) -> Respond:
    """Logs each request and its reply."""

    def audited(request: Envelope, context: Context) -> Envelope:
        fields = {"kind": printable(str(request.header.get("kind")))}
        if is_count(request.header.get("round")):
            fields["round"] = request.header["round"] + 1
        audit("request", **fields, bytes=_payload(request))
        begin = time.monotonic()
        reply = respond(request, context)
        if "error" in reply.header:
            fields["reason"] = reply.header["error"]
        seconds = round(time.monotonic() - begin, 3)
        audit("reply", **fields, bytes=_payload(reply), seconds=seconds)
        return reply

    return audited


def _payload(message: Envelope) -> int:
    return sum(array.nbytes for array in message.arrays.values())


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
        metadata = response.messages_list[0].metadata
        if context.run_id != metadata.run_id:  # keys and shares of a secure sum belong to one run
            context = Context(metadata.run_id, node.node_id, {}, RecordDict(), {})
        try:
            data = take_request(fleet, node, metadata)
            leave_reply(fleet, node, metadata, _reply_to(data, respond, context))
        except httpx.HTTPStatusError as error:
            # a round that has ended is no reason to disconnect
            if error.response.status_code != ENDED:
                raise


def _reply_to(data: bytes, respond: Respond, context: Context) -> bytes:
    """Answers a message, given as bytes; an unreadable one with an error."""
    try:
        return to_bytes(respond(from_bytes(data), context))
    except ValueError as error:
        return to_bytes(Envelope({"error": printable(str(error))}, {}))
