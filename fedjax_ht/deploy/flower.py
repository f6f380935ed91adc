"""A deployment's messages by Flower: its records, and requests to its nodes with their replies.

Needs the extra `flower`. `link` is the server's end of the wire, `node` a client's.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedjax_ht.deploy.messages import (
    HEADER_BYTES,
    Envelope,
    from_bytes,
    is_count,
    parse_header,
    printable,
    to_bytes,
)
from fedjax_ht.deploy.secagg import secure_sum
from fedjax_ht.deploy.server import Transport

MESSAGE_TYPES = {"hello": "query", "train": "train", "evaluate": "evaluate"}
"""Kind of a request -> type of Flower's message."""
MEET_SECONDS = 1.0
SHARE_BYTES = 1 << 12
"""Most bytes of keys and shares that a client of a secure sum sends for each other client."""


def to_records(envelope: Envelope) -> RecordDict:
    """Converts an envelope to Flower's records: "message", its arrays, and "header", JSON."""
    arrays = {}
    for name, array in envelope.arrays.items():
        shape = tuple(array.shape)
        arrays[name] = Array(str(array.dtype), shape, "numpy.ndarray", to_bytes(array))
    header = ConfigRecord({"json": json.dumps(envelope.header)})
    return RecordDict({"message": ArrayRecord(arrays), "header": header})


def from_records(records: RecordDict, max_bytes: int | None = None) -> Envelope:
    """Reads the envelope that `to_records` wrote.

    Args:
      records: of a message.
      max_bytes: of all arrays together; None for any number.

    Raises:
      ValueError: the records are no envelope, or a longer one. One line.
    """
    try:
        text = records.config_records["header"]["json"]
        packed = dict(records.array_records["message"])
        size = sum(len(array.data) for array in packed.values())
        if max_bytes is not None and size > max_bytes:
            raise ValueError(f"it has {size} bytes of arrays, and may have {max_bytes}")
        header = parse_header(text)
        arrays = {name: from_bytes(array.data, array.dtype) for name, array in packed.items()}
        return Envelope(header, arrays)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of this library: {printable(repr(error))}") from None


def flower_transport(
    grid: Any, patience: float, timeout: float, tell: Callable[[str], None], limit: float = 8.0
) -> Transport:
    """Returns the `Transport` to the clients behind Flower's nodes.

    Args:
      grid: a `link.Link`, or an object with its attributes.
      patience: seconds to wait for clients that are not connected.
      timeout: seconds that clients have to reply.
      tell: takes a line for whoever watches the server.
      limit: of the numbers in a sum, see `secagg.secure_sum`.
    """
    clients = _NodeClients(grid, patience, timeout, tell, limit)
    return Transport(clients.meet, clients.exchange, clients.add)


@dataclasses.dataclass
class _NodeClients:
    """The clients behind Flower's nodes; the public methods are those of `Transport`.

    Attributes:
      grid, patience, timeout, tell, limit: as of `flower_transport`.
      hellos: node id -> header of its client's reply to "hello", of nodes that are online.
      refused: ids of online nodes that are left out.
    """

    grid: Any
    patience: float
    timeout: float
    tell: Callable[[str], None]
    limit: float
    hellos: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    refused: set[int] = dataclasses.field(default_factory=set)

    def meet(self, hello: Envelope, min_clients: int) -> dict[int, dict[str, Any]]:
        end = time.monotonic() + self.patience
        while True:
            online = set(self.grid.get_node_ids())
            self.refused &= online
            for node in self.hellos.keys() - online:
                self.tell(f"client {self.hellos.pop(node)['client']} has disconnected")
            requests = {}
            for node in online - self.hellos.keys() - self.refused:
                owner = {"owner": self.grid.owners[node]} if node in self.grid.owners else {}
                requests[node] = hello._replace(header=hello.header | owner)
            for node, reply in self._send(requests, {}).items():
                self._greet(node, reply)
            if len(self.hellos) >= min_clients or time.monotonic() > end:
                return {header["client"]: header for header in self.hellos.values()}
            time.sleep(MEET_SECONDS)

    def _greet(self, node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):  # not refused: it is asked again the next time
            self.tell(f"node {node} does not answer: {reply}")
            return
        client = reply.header.get("client")
        problem = reply.header.get("error") or self._identity_problem(node, client)
        if problem:
            self.tell(f"node {node} (client {printable(str(client))}) is left out: {problem}")
            self.refused.add(node)
        else:
            self.hellos[node] = reply.header

    def _identity_problem(self, node: int, client: Any) -> str:
        """Says why a node cannot be the client that it says it is; "" where it can."""
        if not is_count(client):
            return "it does not say which client it is"
        if self.grid.owners.get(node, client) != client:
            return f"its key is that of client {self.grid.owners[node]}"
        if client in self._nodes():
            return f"client {client} is connected already"
        return ""

    def _nodes(self) -> dict[int, int]:
        """Returns {client id: node id}."""
        return {header["client"]: node for node, header in self.hellos.items()}

    def exchange(
        self, requests: dict[int, Envelope], max_bytes: Mapping[int, int]
    ) -> dict[int, Envelope]:
        sent, sizes = {}, {}
        for client, node in self._nodes().items():
            if client in requests:
                sent[node] = requests[client]
                sizes[node] = max_bytes.get(client, 0)
        replies = {}
        for node, reply in self._send(sent, sizes).items():
            if isinstance(reply, str):
                reply = Envelope({"error": reply}, {})
            replies[self.hellos[node]["client"]] = reply
        return replies

    def add(
        self,
        requests: dict[int, Envelope],
        groups: Mapping[str, Sequence[int]],
        max_bytes: Mapping[int, int],
    ) -> tuple[dict[int, Envelope], dict[str, np.ndarray | str]]:
        nodes, replies, totals = self._nodes(), {}, {}
        for name, clients in groups.items():
            sent, sizes = {}, {}
            for client in clients:
                if client in nodes:
                    sent[nodes[client]] = to_records(requests[client])
                    shares = SHARE_BYTES * len(clients)
                    sizes[nodes[client]] = HEADER_BYTES + max_bytes[client] + shares
            self.grid.expect(sizes)
            result = secure_sum(self.grid, sent, self.limit, self.timeout)
            for node, header in result.headers.items():
                replies[self.hellos[node]["client"]] = Envelope(header, {})
            for node, problem in result.lost.items():
                replies[self.hellos[node]["client"]] = Envelope({"error": problem}, {})
            totals[name] = result.total
        return replies, totals

    def _send(
        self, requests: dict[int, Envelope], max_bytes: Mapping[int, int]
    ) -> dict[int, Envelope | str]:
        """Returns the nodes' replies; a line where Flower has an error, or the reply is invalid."""
        if not requests:
            return {}
        self.grid.expect({node: HEADER_BYTES + max_bytes.get(node, 0) for node in requests})
        messages = []
        for node, request in requests.items():
            kind = MESSAGE_TYPES[request.header["kind"]]
            records = to_records(request)
            messages.append(Message(records, dst_node_id=node, message_type=kind, ttl=self.timeout))
        replies = list(self.grid.send_and_receive(messages, timeout=self.timeout))
        # only now have the messages their ids
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        read = {}
        for reply in replies:
            node = nodes[reply.metadata.reply_to_message_id]
            read[node] = _read_reply(reply, max_bytes.get(node, 0))
        return read


def _read_reply(reply: Message, max_bytes: int) -> Envelope | str:
    if reply.has_error():
        return printable(reply.error.reason or f"error {reply.error.code}")
    try:
        return from_records(reply.content, max_bytes)
    except ValueError as error:
        return printable(str(error))


def log_to(path: Path) -> None:
    """Writes Flower's log to a file instead of the terminal."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name in ("flwr", "uvicorn", "httpx"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
