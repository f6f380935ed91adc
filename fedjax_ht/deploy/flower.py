"""A deployment's transport: requests to the clients behind Flower's nodes, and their replies.

Needs the extra `flower`. `link` is the server's end of the wire, `node` a client's.
"""

import dataclasses
import logging
import logging.handlers
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.contacts import Transport
from fedjax_ht.deploy.headers import is_count, printable
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.secagg import secure_sum
from fedjax_ht.deploy.secure_sums import SHARE_BYTES

LOG_BYTES = 1 << 20
"""Most bytes of Flower's log, and of the one before it."""
MEET_SECONDS = 1.0
HELLO_SECONDS = 30.0
"""How long a round waits for a node that does not say who it is."""


def flower_transport(
    link: Any,
    patience: float,
    timeout: float,
    tell: Callable[[str], None],
    limit: float = 8.0,
    *,
    audit: Audit = no_audit,
) -> Transport:
    """Returns the `Transport` to the clients behind Flower's nodes.

    Args:
      link: a `link.Link`, or an object with its attributes.
      patience: seconds to wait for clients that are not connected.
      timeout: seconds that clients have to reply.
      tell: takes a line for whoever watches the server.
      limit: bound on the numbers in a sum, see `secagg.secure_sum`.
      audit: the log of the server.
    """
    clients = _NodeClients(
        link=link, patience=patience, timeout=timeout, tell=tell, limit=limit, audit=audit
    )
    return Transport(clients.meet, clients.exchange, clients.add)


@dataclasses.dataclass
class _NodeClients:
    """The clients behind Flower's nodes; the public methods are those of `Transport`.

    Attributes:
      link, patience, timeout, tell, limit, audit: the arguments of `flower_transport`.
      hellos: node id -> header of its client's reply to "hello", of nodes that are online.
      refused: ids of online nodes that are left out.
      silent: node id -> time before which it is not asked again, of nodes that have not answered.
    """

    link: Any
    patience: float
    timeout: float
    tell: Callable[[str], None]
    limit: float
    audit: Audit
    hellos: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    refused: set[int] = dataclasses.field(default_factory=set)
    silent: dict[int, float] = dataclasses.field(default_factory=dict)

    def meet(self, hello: Envelope, min_clients: int) -> dict[int, dict[str, Any]]:
        end = time.monotonic() + self.patience
        while True:
            online = set(self.link.get_node_ids())
            self.refused &= online
            for node in self.hellos.keys() - online:
                client = self.hellos.pop(node)["client"]
                self.tell(f"client {client} has disconnected")
                self.audit("disconnected", client=client)
            self._greet_all(online - self.hellos.keys() - self.refused, hello)
            if len(self.hellos) >= min_clients or time.monotonic() > end:
                return {header["client"]: header for header in self.hellos.values()}
            time.sleep(MEET_SECONDS)

    def _greet_all(self, nodes: set[int], hello: Envelope) -> None:
        """Asks nodes for the headers of their clients."""
        requests, now = {}, time.monotonic()
        for node in nodes:
            if self.silent.get(node, now) <= now:
                owner = {"owner": self.link.owners[node]} if node in self.link.owners else {}
                requests[node] = hello._replace(header=hello.header | owner)
        if not requests:
            return
        replies = self.link.exchange(requests, {}, min(HELLO_SECONDS, self.timeout))
        for node in requests:
            self.silent.pop(node, None)
            if node in replies:
                self._greet(node, replies[node])
            else:
                self._note_silence(node, "it does not say who it is")
                self.silent[node] = time.monotonic() + self.timeout

    def _name(self, node: int) -> str:
        """Returns the name of a node in a line: that of the client whose key it has."""
        owners = self.link.owners
        return f"client {owners[node]}" if node in owners else f"node {node}"

    def _greet(self, node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):  # not refused: it is asked again the next time
            self._note_silence(node, reply)
            return
        client = reply.header.get("client")
        problem = reply.header.get("error") or self._identity_problem(node, client)
        if problem:
            name = printable(str(client))
            self.tell(f"node {node} (client {name}) is left out: {problem}")
            self.audit("left_out", node=node, client=name, reason=str(problem))
            self.refused.add(node)
        else:
            self.hellos[node] = reply.header
            self.audit("connected", client=client, node=node)

    def _note_silence(self, node: int, reason: str) -> None:
        self.tell(f"{self._name(node)} does not answer: {reason}")
        self.audit("silent", node=node, client=self.link.owners.get(node), reason=reason)

    def _identity_problem(self, node: int, client: Any) -> str:
        """Says why a node cannot be the client that it says it is; "" where it can."""
        if not is_count(client):
            return "it does not say which client it is"
        if self.link.owners.get(node, client) != client:
            return f"its key is that of client {self.link.owners[node]}"
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
        for node, reply in self.link.exchange(sent, sizes, self.timeout).items():
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
                    sent[nodes[client]] = requests[client]
                    sizes[nodes[client]] = max_bytes[client] + SHARE_BYTES * len(clients)
            result = secure_sum(self.link, sent, sizes, limit=self.limit, timeout=self.timeout)
            for node, header in result.headers.items():
                replies[self.hellos[node]["client"]] = Envelope(header, {})
            for node, problem in result.lost.items():
                replies[self.hellos[node]["client"]] = Envelope({"error": problem}, {})
            totals[name] = result.total
        return replies, totals


def log_to(path: Path) -> None:
    """Writes Flower's log to a file instead of the terminal, and no more than two of `LOG_BYTES`.

    Strangers can have lines written.
    """
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name in ("flwr", "uvicorn", "httpx", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
