"""The server's mailbox: one request to a node and one reply from it, each an opaque object.

Flower stores a message as a tree of objects named by the hashes of their contents, in one heap that
all nodes write to. Here a message is one object without children, and the server makes both names:
a request's at random, a reply's from its request's. A node fetches its own request and delivers its
own reply, once, within the reply's size limit. Nothing else can be fetched or delivered. Needs the
extra `flower`.
"""

import hashlib
import secrets
import threading
from typing import Any, NamedTuple

from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.supercore.object_store import NoObjectInStoreError, ObjectStore
from google.protobuf.message import DecodeError

from fedjax_ht.deploy.messages import Envelope, to_bytes

UPLOAD = "push-object"
"""The call whose request carries a reply."""
CALLS: dict[str, Any] = {
    "activate-node": ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    "send-node-heartbeat": SendNodeHeartbeatRequest,
    "pull-messages": PullMessagesRequest,
    "pull-object": PullObjectRequest,
    "confirm-message-received": ConfirmMessageReceivedRequest,
    "push-messages": PushMessagesRequest,
    UPLOAD: PushObjectRequest,
}
"""Calls of Flower's Fleet API that a client makes -> form of the request."""
PASSES, MALFORMED, FORBIDDEN, ENDED = 200, 400, 403, 410
"""HTTP codes of a request that Flower gets, of a malformed one, of one that is not the node's own,
and of one that belongs to no open exchange."""


class Exchange(NamedTuple):
    """One request to a node, and its reply.

    Attributes:
      request_id, reply_id: names of the two objects, 64 hexadecimal digits.
      request: message for the node.
      max_bytes: most bytes of the reply.
    """

    request_id: str
    reply_id: str
    request: Envelope
    max_bytes: int


def reply_id_of(request_id: str) -> str:
    """Returns the name of the reply to a request."""
    return hashlib.sha256(f"reply to {request_id}".encode()).hexdigest()


class Mailbox(ObjectStore):
    """The open exchanges of all nodes, at most one each, as Flower's store of objects.

    Flower's threads and the server's access it at the same time.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self._exchanges: dict[int, Exchange] = {}
        self._nodes: dict[str, int] = {}  # by either name
        self._announced: set[str] = set()
        self._replies: dict[str, bytes] = {}

    def open(self, node: int, request: Envelope, max_bytes: int) -> Exchange:
        """Opens an exchange with a node, which replaces an open one."""
        request_id = secrets.token_hex(32)  # nobody can guess it
        exchange = Exchange(request_id, reply_id_of(request_id), request, max_bytes)
        with self._lock:
            self.close(node)
            self._exchanges[node] = exchange
            self._nodes |= dict.fromkeys((exchange.request_id, exchange.reply_id), node)
        return exchange

    def close(self, node: int) -> None:
        """Ends the node's exchange, if any: nothing more of it is fetched or delivered."""
        with self._lock:
            exchange = self._exchanges.pop(node, None)
            if exchange is not None:
                del self._nodes[exchange.request_id], self._nodes[exchange.reply_id]
                self._announced.discard(exchange.reply_id)
                self._replies.pop(exchange.reply_id, None)

    def reply(self, node: int) -> bytes | None:
        """Returns a node's reply; None until it has arrived."""
        with self._lock:
            return self._replies.get(self._exchanges[node].reply_id)

    def status(self, call: str, node: int, body: bytes) -> int:
        """Decides on a node's request: `PASSES`, or the code of its refusal.

        Args:
          call: a name in `CALLS`.
          node: id of the node that signed the request.
          body: body of the request.
        """
        try:
            request = CALLS[call].FromString(body)
        except DecodeError:
            return MALFORMED
        if _sender(call, request, node) != node:
            return FORBIDDEN
        with self._lock:
            exchange = self._exchanges.get(node)
            if call == "push-messages":
                return self._announce(request, node, exchange)
            if call in _OBJECT_NAMES:
                name = getattr(request, _OBJECT_NAMES[call])
                return self._status_of_object(call, name, exchange)
        return PASSES

    def _announce(self, request: PushMessagesRequest, node: int, exchange: Exchange | None) -> int:
        """Decides on the announcement of a reply, which passes once."""
        if not _announces_a_reply(request, node):
            return FORBIDDEN
        name = request.messages_list[0].metadata.message_id
        if exchange is None or exchange.reply_id != name:
            return ENDED
        if name in self._announced:
            return FORBIDDEN
        self._announced.add(name)
        return PASSES

    def _status_of_object(self, call: str, name: str, exchange: Exchange | None) -> int:
        if exchange is None:
            return ENDED
        if call == UPLOAD:
            is_due = exchange.reply_id in self._announced - self._replies.keys()
            return PASSES if name == exchange.reply_id and is_due else ENDED
        return PASSES if name == exchange.request_id else ENDED

    # Called by Flower, once a request has passed

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Returns the names that are still to be put: a reply's own, none for a request."""
        name = object_tree.object_id
        with self._lock:
            if object_tree.children or name not in self:
                raise ValueError(f"{name} is not the name of an open exchange")
            exchange = self._exchanges[self._nodes[name]]
            return [name] if name == exchange.reply_id else []

    def get_object_tree(self, object_id: str) -> ObjectTree:
        """Returns a tree of one node."""
        if object_id not in self:
            raise NoObjectInStoreError(f"{object_id} is not the name of an open exchange")
        return ObjectTree(object_id=object_id)

    def put(self, object_id: str, object_content: bytes) -> None:
        """Stores a reply of at most `Exchange.max_bytes`."""
        with self._lock:
            exchange = self._exchanges.get(self._nodes.get(object_id, 0))
            if exchange is None or object_id != exchange.reply_id:
                raise NoObjectInStoreError(f"{object_id} is not the name of an expected reply")
            if len(object_content) > exchange.max_bytes:
                raise ValueError(
                    f"{len(object_content)} bytes; at most {exchange.max_bytes} are allowed"
                )
            self._replies.setdefault(object_id, object_content)

    def get(self, object_id: str) -> bytes | None:
        """Returns the bytes of a request or a reply; b"" for a reply still to be put."""
        with self._lock:
            exchange = self._exchanges.get(self._nodes.get(object_id, 0))
            if exchange is None:
                return None
            if object_id == exchange.reply_id:
                return self._replies.get(object_id, b"")
        # Serialised only now: the requests of a round share their equal arrays, see `replies`
        return to_bytes(exchange.request)

    def delete(self, object_id: str) -> None:
        """Does nothing: an exchange ends by `close`."""

    def delete_objects_in_run(self, run_id: int) -> None:
        """Does nothing, like `delete`."""

    def clear(self) -> None:
        """Ends all exchanges."""
        with self._lock:
            for node in list(self._exchanges):
                self.close(node)

    def __contains__(self, object_id: str) -> bool:
        return object_id in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)


_OBJECT_NAMES = {
    "pull-object": "object_id",
    "confirm-message-received": "message_object_id",
    UPLOAD: "object_id",
}
"""Call -> the field of its request that names an object."""


def _sender(call: str, request: Any, node: int) -> int:
    """Returns the id of the node that a request claims to be from."""
    if call == "activate-node":  # it has no id yet; Flower compares the key
        return node
    return request.node_id if call == "deactivate-node" else request.node.node_id


def _announces_a_reply(request: PushMessagesRequest, node: int) -> bool:
    """Returns whether a request is the node's own announcement of one object, by its name."""
    messages, trees = request.messages_list, request.message_object_trees
    if len(messages) != 1 or len(trees) != 1:
        return False
    metadata = messages[0].metadata
    # Flower would accept a message that claims to be the server's, and pass it to another client
    is_own_reply = metadata.src_node_id == node and metadata.reply_to_message_id != ""
    has_content = messages[0].content.ByteSize() > 0 or messages[0].HasField("error")
    name = reply_id_of(metadata.reply_to_message_id)
    is_named = metadata.message_id == name and trees[0] == ObjectTree(object_id=name)
    return is_own_reply and is_named and not has_content
