"""The server's end of the wire: Flower's SuperLink in this process, behind a gate.

Flower's own commands start runs and exchange messages by its Control and Runtime APIs. Here its
functions are called directly. No socket answers these APIs, so nothing on this machine or elsewhere
can use them. Needs the extra `flower`.
"""

import contextlib
import dataclasses
import functools
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from flwr.app import Message, RecordDict
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet import node_auth

from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.gate import (
    CLOCK_SECONDS,
    TOO_LONG,
    Allowance,
    Watch,
    gate,
    register_node,
    signing_node,
)
from fedjax_ht.deploy.mailbox import Mailbox
from fedjax_ht.deploy.messages import Envelope, from_bytes, message_bytes, printable

PER_NODE = 8
"""Most connections per node."""
STRANGERS = 64
"""Connections for strangers, who also get those that clients leave free."""
BURST = 16
"""Most connections accepted in one go."""
SPARE = 4 * BURST
"""Connections allowed beyond the limit until those that end are closed."""
RESERVE = 256
"""File descriptors reserved for files."""
QUEUE = 1024
"""Connections that may wait in the system to be accepted."""
SILENT_SECONDS = 30.0
"""How long a stranger's connection may stay open."""
Address = tuple[str, int]
FLUSH_SECONDS = 60.0
"""Refusals within this time share a line of the audit log, so that strangers cannot fill it."""
UPLOAD_SECONDS = 365 * 86400
"""How long a reply may take after its announcement: no limit of its own."""
MOST_ADDRESSES = 1000
"""Most addresses that are remembered; beyond, some are logged again."""
FRAMING_BYTES = 1 << 10
"""Most bytes of the request that carries a reply, besides the reply."""
HEAD_BYTES = 1 << 14
"""Most bytes of a request's URL and headers."""
SWEEP_SECONDS = 5
"""Between two checks for silent connections."""
UNKNOWN_CLIENTS = 32
"""Number of clients for whose connections there is room without a list of keys."""
MESSAGE_TYPE = "train"
"""For Flower; the kind of a request is in its header."""
START_SECONDS = 60.0
POLL_SECONDS = 0.2


class Connections:
    """The open connections of a server, oldest first.

    A connection is a stranger's until a known key signs a request on it. If there are too many, the
    oldest stranger's is closed, so silent connections keep no client out. Only the event loop's
    thread calls the methods.

    Attributes:
      most: most connections at a time.
      since: address of the other side -> time when its connection was accepted.
      nodes: address -> id of the node whose key signed a request on the connection.
    """

    def __init__(self, most: int):
        self.most = most
        self.since: dict[Address, float] = {}
        self.nodes: dict[Address, int] = {}
        self._open: dict[Address, _Connection] = {}
        self._closing: set[Address] = set()

    def admit(self, connection: "_Connection") -> bool:
        """Accepts a new connection, and ends the oldest stranger's if there are too many."""
        if len(self._open) >= self.most:
            oldest = next(self._strangers(), None)
            if oldest is None or len(self._open) >= self.most + SPARE:
                return False
            self._end(oldest)
        self._open[connection.address] = connection
        self.since[connection.address] = time.monotonic()
        return True

    def know(self, address: Address, node: int) -> None:
        """Records whose key signed a request on a connection; ends the oldest of too many."""
        if address in self._open and address not in self.nodes:
            self.nodes[address] = node
            same = [a for a, owner in self.nodes.items() if owner == node]
            for oldest in same[:-PER_NODE]:
                self._end(oldest)

    async def end_silent(self) -> None:
        """Ends strangers' connections that have been open too long."""
        now = time.monotonic()
        for address in list(self._strangers()):
            if now - self.since[address] > SILENT_SECONDS:
                self._end(address)

    def forget(self, address: Address) -> None:
        """Records that a connection is closed."""
        self._open.pop(address, None)
        self.since.pop(address, None)
        self.nodes.pop(address, None)
        self._closing.discard(address)

    def _strangers(self) -> Iterator[Address]:
        for address in self._open:
            if address not in self.nodes and address not in self._closing:
                yield address

    def _end(self, address: Address) -> None:
        """Ends a connection: the event loop, which still watches it, then closes it."""
        self._closing.add(address)
        self._open[address].end()


class _Connection(socket.socket):
    """A connection that reports when it is closed.

    Attributes:
      address: address of the other side.
      on_closed: called with the address.
    """

    address: Address
    on_closed: Callable[[Address], None]

    def end(self) -> None:
        """Shuts both directions down, without closing the connection."""
        with contextlib.suppress(OSError):  # the other side was faster
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self.on_closed(self.address)


class Listener(socket.socket):
    """A listening socket that accepts no more connections than allowed.

    Attributes:
      connections: the open connections.
    """

    connections: Connections

    def accept(self) -> tuple[socket.socket, Address]:
        """Accepts the next connection that is allowed, and closes all others at once."""
        while True:
            taken, address = super().accept()
            connection = _Connection(self.family, self.type, self.proto, fileno=taken.detach())
            connection.address, connection.on_closed = address[:2], self.connections.forget
            if self.connections.admit(connection):
                return connection, address
            connection.close()

    def listen(self, backlog: int = QUEUE) -> None:
        """Listens; the event loop's own number is how many it accepts in one go."""
        super().listen(QUEUE)


def listeners(host: str, port: int, connections: Connections) -> list[socket.socket]:
    """Returns sockets bound to an address.

    Raises:
      OSError: the address is not available.
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
    """Returns the most connections for so many clients, within the process's file descriptors.

    The process's own limit is raised if the system allows it.

    Raises:
      OSError: there are too few descriptors for the clients. One line.
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
    least = 2 * num_clients + BURST  # a client's message loop and its heartbeat
    if left < least:
        raise OSError(
            f"this process may open {soft} files, but a server of {num_clients} clients needs "
            f"{least + SPARE + RESERVE}; raise the limit with ulimit -n"
        )
    return min(usual, left)


class Visits:
    """Counts refused requests between two log lines, and remembers the addresses of clients.

    The gate's thread writes to it, the server's reads it.
    """

    def __init__(self, owners: Mapping[int, int], tell: Callable[[str], None], audit: Audit):
        self._owners, self._tell, self._audit = owners, tell, audit
        self._lock = threading.Lock()
        self._refused: Counter[tuple[int | None, int]] = Counter()
        self._too_long: set[int] = set()
        self._addresses: set[tuple[int, str]] = set()
        self._flushed = time.monotonic()

    def sender(self, node: int) -> dict[str, int]:
        """Returns the field of a log line that names a node: its client, if its key is known."""
        owner = self._owners.get(node)
        return {"node": node} if owner is None else {"client": owner}

    def add_address(self, node: int, host: str) -> None:
        """Records the address from which a node sent a signed request."""
        with self._lock:
            if (node, host) in self._addresses:
                return
            if len(self._addresses) >= MOST_ADDRESSES:
                self._addresses.clear()
            self._addresses.add((node, host))
        self._audit("address", **self.sender(node), host=host)

    def add_refusal(self, node: int | None, status: int) -> None:
        """Records a refused request, with its HTTP code; None is a stranger."""
        with self._lock:
            self._refused[node, status] += 1
            if node is not None and status == TOO_LONG:
                self._too_long.add(node)

    def flush(self, is_last: bool = False) -> None:
        """Reports clients that have sent too much, and periodically all refusals."""
        with self._lock:
            too_long, self._too_long = self._too_long, set()
            is_due = is_last or time.monotonic() - self._flushed > FLUSH_SECONDS
            refused: Counter[tuple[int | None, int]] = Counter()
            if is_due:
                refused, self._refused = self._refused, refused
                self._flushed = time.monotonic()
        for node in sorted(too_long):
            name = " ".join(map(str, *self.sender(node).items()))
            self._tell(f"{name} sent more bytes than allowed; they were not read")
        by_sender: dict[int | None, dict[str, int]] = {}
        for (node, status), count in sorted(refused.items(), key=str):
            by_sender.setdefault(node, {})[str(status)] = count
        for node, codes in by_sender.items():
            fields: dict[str, Any] = {} if node is None else self.sender(node)
            self._audit("refused" if fields else "strangers", **fields, codes=codes)


@contextlib.contextmanager
def open_link(
    host: str,
    port: int,
    certificate: tuple[Path, Path] | None,
    keys: Mapping[int, bytes] | None,
    tell: Callable[[str], None],
    *,
    client_ca: Path | None = None,
    audit: Audit = no_audit,
) -> Iterator["Link"]:
    """Listens at an address within the block.

    Args:
      host, port: the address.
      certificate: files of the server's certificate and its private key; None without TLS.
      keys: client id -> its public key; None admits every key.
      tell: called with a message for the server's operator.
      client_ca: file of the authority that signs clients' certificates, without which TLS refuses a
        client. None requires no certificate.
      audit: the server's log.

    Raises:
      OSError: the server cannot listen there. One line.
    """
    app, mailbox, allowance = create_app(), Mailbox(), Allowance()
    app.state.enable_supernode_auth = True  # no node can register or remove itself by a call
    # Flower's own limits, 5 s and 3 minutes, are below those of the gate and of `Link.exchange`
    node_auth.__dict__["SYSTEM_TIME_TOLERANCE"] = CLOCK_SECONDS
    in_memory_corestate.__dict__["OBJECT_PUSH_SESSION_TTL_SECONDS"] = UPLOAD_SECONDS
    factory = app.state.linkstate_factory
    # Flower's own has a heap of objects, to which every node writes
    state = factory.state_instance = InMemoryLinkState(factory.federation_manager, mailbox)
    owners = {register_node(state, key): client for client, key in (keys or {}).items()}
    identify = functools.partial(signing_node, state, keys is not None)
    connections = Connections(most_connections(len(keys or ()) or UNKNOWN_CLIENTS))
    visits = Visits(owners, tell, audit)

    def on_known(address: tuple[str, int], node: int) -> None:
        connections.know(address, node)
        visits.add_address(node, address[0])

    watch = Watch(on_known=on_known, on_refused=visits.add_refusal)
    guarded = gate(app, identify, mailbox.status, allowance=allowance, watch=watch)
    chain, key = certificate or (None, None)
    config = uvicorn.Config(
        guarded,
        loop="asyncio",  # it accepts connections by `Listener.accept`
        http="h11",
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        backlog=BURST,
        callback_notify=connections.end_silent,
        timeout_notify=SWEEP_SECONDS,
        access_log=False,
        proxy_headers=False,  # by them, a client of this machine would choose its own address
        log_config=None,
        ssl_certfile=chain,
        ssl_keyfile=key,
        ssl_ca_certs=client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED,
    )
    run_id = _start_run(state)
    with _listening(uvicorn.Server(config), host, port, connections):
        try:
            yield Link(
                state, mailbox, allowance, run_id=run_id, owners=owners, visits=visits, audit=audit
            )
        finally:
            visits.flush(is_last=True)


@contextlib.contextmanager
def _listening(
    server: uvicorn.Server, host: str, port: int, connections: Connections
) -> Iterator[None]:
    """Runs the server in a thread within the block."""
    problems: list[BaseException] = []
    try:
        sockets = listeners(host, port, connections)
    except OSError as error:
        reason = printable(str(error))
        raise OSError(f"the server cannot listen on {host}:{port}: {reason}") from None

    def serve():
        try:
            server.run(sockets)
        except (SystemExit, Exception) as error:
            problems.append(error)

    thread = threading.Thread(target=serve, name="link", daemon=True)
    thread.start()
    end = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            reason = f": {printable(str(problems[0]))}" if problems else ""
            raise OSError(f"the server cannot listen on {host}:{port}{reason}; see flower.log")
        time.sleep(0.05)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(5.0)


def _start_run(state: InMemoryLinkState) -> int:
    """Starts Flower's run for this process; returns its id."""
    run_id = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    (run,) = state.get_run_info(run_ids=[run_id])
    task_id = run.primary_task_id
    assert task_id is not None  # true for every created run
    state.claim_task(task_id)
    state.activate_task(task_id)
    # without the claim's token the run has no heartbeat, whose pause would end it: a machine may
    # sleep, and its clock may be set
    state.task_token_store.clear()
    # Flower's `Message` takes its sender and run from these
    TaskIdentity.run_id, TaskIdentity.node_id = run_id, SUPERLINK_NODE_ID
    TaskIdentity.task_id = task_id
    return run_id


@dataclasses.dataclass
class Link:
    """A running SuperLink with one run, and the nodes behind its gate.

    Attributes:
      state: state of Flower's SuperLink.
      mailbox: its object store.
      allowance: bytes that nodes may upload.
      run_id: id of the SuperLink's run.
      owners: node id -> id of the client whose key it has; {} without a list of keys.
      visits: the requests that the gate has refused, and the addresses of clients.
      audit: the server's log.
    """

    state: LinkState
    mailbox: Mailbox
    allowance: Allowance
    _: dataclasses.KW_ONLY
    run_id: int
    owners: Mapping[int, int]
    visits: Visits
    audit: Audit

    def online_nodes(self) -> dict[int, str]:
        """Returns {node id: time of its last connection} for the nodes that are online."""
        self.visits.flush()
        return self._online()

    def _online(self) -> dict[int, str]:
        nodes = self.state.get_node_info(statuses=[NodeStatus.ONLINE])
        return {node.node_id: node.last_activated_at for node in nodes}

    def exchange(
        self, requests: Mapping[int, Envelope], max_bytes: Mapping[int, int], timeout: float
    ) -> dict[int, Envelope | str]:
        """Sends requests to nodes; returns the replies that arrive in time.

        An unreadable reply becomes an error message. Each reply is taken as soon as it arrives,
        whatever the other nodes do. A node that is offline, or has connected again since the start,
        is not awaited: what it was asked is lost. `max_bytes` limits the arrays of each node's
        reply, to 0 where none are given.
        """
        names: dict[int, str] = {}
        replies: dict[int, Envelope | str] = {}
        begin, connected = time.monotonic(), self._online()
        try:
            for node, request in requests.items():
                size = message_bytes(max_bytes.get(node, 0))
                self.allowance.grant(node, size + FRAMING_BYTES)
                names[node] = self.mailbox.open(node, request, size).request_id
                _announce(self.state, node, names[node], timeout)
                payload = sum(array.nbytes for array in request.arrays.values())
                self._note("request", node, request, size=payload)
            waiting = set(names)
            while waiting and time.monotonic() - begin < timeout:
                online = self._online()
                for node in sorted(waiting):
                    data = self.mailbox.reply(node)
                    if data is not None:
                        replies[node] = _read(data, max_bytes.get(node, 0))
                        self._note("reply", node, requests[node], size=len(data))
                    is_gone = node not in online or online[node] != connected.get(node)
                    if data is not None or is_gone:
                        waiting.remove(node)
                if waiting:
                    time.sleep(POLL_SECONDS)
            return replies
        finally:
            for node in names:
                self.mailbox.close(node)
            self.state.delete_messages(set(names.values()))
            self.visits.flush()

    def _note(self, event: str, node: int, request: Envelope, *, size: int) -> None:
        header = request.header
        fields = {"kind": header["kind"], "bytes": size}
        if "round" in header:
            fields["round"] = header["round"] + 1
        self.audit(event, **self.visits.sender(node), **fields)


def _announce(state: LinkState, node: int, name: str, timeout: float) -> None:
    """Lets a node's next call for messages find the request with that name."""
    message = Message(RecordDict(), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=timeout)
    # Flower names a message by a hash of its content, which is stored elsewhere
    message.metadata.__dict__["_message_id"] = name
    state.store_message_ins(message)


def _read(data: bytes, max_bytes: int) -> Envelope | str:
    try:
        return from_bytes(data, max_bytes)
    except ValueError as error:
        return printable(str(error))
