"""The server's connections: how many there are at a time, and how long a stranger's may be silent.

A connection is a stranger's until a request on it is signed by a known key. Where there are too
many, the oldest stranger's gives way to a newer one, so that no number of silent ones keeps a
client out; and a client has no more than `PER_NODE`. What is left of the process's descriptors is
for its files.
"""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator

PER_NODE = 8
"""Most connections of a node."""
STRANGERS = 64
"""Connections that all strangers may have together."""
BURST = 16
"""Connections that are taken in one go."""
SPARE = 4 * BURST
"""Connections that may be there beyond the limit for a moment, until those that end are closed."""
RESERVE = 256
"""Descriptors that are left for files."""
QUEUE = 1024
"""Connections that wait in the system to be taken."""
SILENT_SECONDS = 30.0
"""How long a stranger's connection may be open."""

Address = tuple[str, int]


class Connections:
    """The open connections of a server, oldest first.

    One thread, that of the event loop, calls its methods.

    Attributes:
      most: most connections at a time.
      since: address of the other side -> when its connection was taken.
      nodes: address -> id of the node whose key has signed a request on the connection.
    """

    def __init__(self, most: int):
        self.most = most
        self.since: dict[Address, float] = {}
        self.nodes: dict[Address, int] = {}
        self._open: dict[Address, _Connection] = {}
        self._closing: set[Address] = set()

    def admit(self, connection: "_Connection") -> bool:
        """Takes a new connection, in place of the oldest stranger's where there are too many."""
        if len(self._open) >= self.most:
            oldest = next(self._strangers(), None)
            if oldest is None or len(self._open) >= self.most + SPARE:
                return False
            self._end(oldest)
        self._open[connection.address] = connection
        self.since[connection.address] = time.monotonic()
        return True

    def know(self, address: Address, node: int) -> None:
        """Notes whose key has signed a request on a connection; ends the oldest of too many."""
        if address in self._open and address not in self.nodes:
            self.nodes[address] = node
            same = [a for a, owner in self.nodes.items() if owner == node]
            for oldest in same[:-PER_NODE]:
                self._end(oldest)

    async def end_silent(self) -> None:
        """Ends strangers' connections that have been open for too long."""
        now = time.monotonic()
        for address in list(self._strangers()):
            if now - self.since[address] > SILENT_SECONDS:
                self._end(address)

    def forget(self, address: Address) -> None:
        """Notes that a connection is closed."""
        self._open.pop(address, None)
        self.since.pop(address, None)
        self.nodes.pop(address, None)
        self._closing.discard(address)

    def _strangers(self) -> Iterator[Address]:
        for address in self._open:
            if address not in self.nodes and address not in self._closing:
                yield address

    def _end(self, address: Address) -> None:
        """Ends a connection: the event loop, which still watches it, sees its end and closes it."""
        self._closing.add(address)
        self._open[address].end()


class _Connection(socket.socket):
    """A connection that says when it is closed.

    Attributes:
      address: the address of the other side.
      on_closed: takes the address.
    """

    address: Address
    on_closed: Callable[[Address], None]

    def end(self) -> None:
        """Shuts both ways down, without closing it."""
        with contextlib.suppress(OSError):  # the other side was faster
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self.on_closed(self.address)


class Listener(socket.socket):
    """A listening socket that takes no more connections than there may be.

    Attributes:
      connections: the open connections.
    """

    connections: Connections

    def accept(self) -> tuple[socket.socket, Address]:
        """Takes the next connection that may be; those that may not are closed at once."""
        while True:
            taken, address = super().accept()
            connection = _Connection(self.family, self.type, self.proto, fileno=taken.detach())
            connection.address, connection.on_closed = address[:2], self.connections.forget
            if self.connections.admit(connection):
                return connection, address
            connection.close()

    def listen(self, backlog: int = QUEUE) -> None:
        """Listens; the event loop's own number is how many it takes in one go."""
        super().listen(QUEUE)


def listeners(host: str, port: int, connections: Connections) -> list[socket.socket]:
    """Returns sockets that are bound to an address.

    Raises:
      OSError: the address is not to be had.
    """
    bound: list[socket.socket] = []
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in dict.fromkeys(infos):
        listener = Listener(family, kind, protocol)
        listener.connections = connections
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.setblocking(False)
        bound.append(listener)
    return bound


def most_connections(num_clients: int) -> int:
    """Returns how many connections a server of so many clients may have, within its descriptors.

    The process's own limit is raised where the system lets it.

    Raises:
      OSError: there are too few for the clients. One line.
    """
    usual = STRANGERS + PER_NODE * num_clients
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return usual
    needed = usual + SPARE + RESERVE
    if soft < needed and hard != soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = soft - SPARE - RESERVE
    least = 2 * num_clients + BURST  # a client's loop over messages and its heartbeat
    if left < least:
        raise OSError(
            f"this process may open {soft} files, and a server of {num_clients} clients needs "
            f"{least + SPARE + RESERVE}; raise it by ulimit -n"
        )
    return min(usual, left)
