"""The server's end of the wire: Flower's SuperLink in this process, behind a gate.

What Flower's own commands do by its Control and Runtime APIs, starting runs and exchanging
messages, is done here by calling its functions. No socket answers these APIs, so that nothing on
this machine or elsewhere can ask them. Needs the extra `flower`.
"""

import contextlib
import dataclasses
import functools
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import uvicorn
from flwr.app import Message, RecordDict
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app

from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.connections import BURST, Connections, listeners, most_connections
from fedjax_ht.deploy.gate import Allowance, Watch, gate, register_node, signing_node
from fedjax_ht.deploy.headers import printable
from fedjax_ht.deploy.mailbox import Mailbox
from fedjax_ht.deploy.messages import Envelope, from_bytes, message_bytes
from fedjax_ht.deploy.visits import Visits

FRAMING_BYTES = 1 << 10
"""Most bytes of the request that carries a reply, besides the reply."""
HEAD_BYTES = 1 << 14
"""Most bytes of a request's URL and headers."""
SWEEP_SECONDS = 5
"""Between two looks for silent connections."""
UNKNOWN_CLIENTS = 32
"""Clients for whose connections there is room where there is no list of keys."""
MESSAGE_TYPE = "train"
"""For Flower; what a request asks for is in its header."""
HEARTBEAT_SECONDS = 10.0
START_SECONDS = 60.0
POLL_SECONDS = 0.2


class Link(NamedTuple):
    """A running SuperLink with one run.

    Attributes:
      get_node_ids: () -> ids of the nodes that are online.
      exchange: ({node id: request}, {node id: bytes}, timeout in seconds) -> {node id: reply}, of
        the nodes that have replied in time; a line in place of an unreadable reply. The bytes are
        those that the arrays of a reply may have, 0 where none are given.
      owners: node id -> id of the client whose key it has; {} without a list of keys.
    """

    get_node_ids: Callable[[], list[int]]
    exchange: Callable[
        [Mapping[int, Envelope], Mapping[int, int], float], dict[int, Envelope | str]
    ]
    owners: Mapping[int, int]


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
) -> Iterator[Link]:
    """Listens at an address within the block.

    Args:
      host, port: the address.
      certificate: files of the server's certificate and its private key, None without TLS.
      keys: client id -> its public key; None lets every key in.
      tell: takes a line for whoever watches the server.
      client_ca: file of the authority that signs clients' certificates: whoever has none gets no
        further than TLS. None asks for none.
      audit: the log of the server.

    Raises:
      OSError: the server cannot listen there. One line.
    """
    app, mailbox, allowance = create_app(), Mailbox(), Allowance()
    app.state.enable_supernode_auth = True  # no node registers or removes itself by a call
    factory = app.state.linkstate_factory
    # Flower's own has a heap of objects, which every node writes into
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
        loop="asyncio",  # which takes connections by `Listener.accept`
        http="h11",
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        backlog=BURST,
        callback_notify=connections.end_silent,
        timeout_notify=SWEEP_SECONDS,
        access_log=False,
        log_config=None,
        ssl_certfile=chain,
        ssl_keyfile=key,
        ssl_ca_certs=client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED,
    )
    with (
        _listening(uvicorn.Server(config), host, port, connections),
        _running(state) as run_id,
    ):
        nodes = _Nodes(state, mailbox, allowance, run_id=run_id, visits=visits, audit=audit)
        yield Link(get_node_ids=nodes.get_node_ids, exchange=nodes.exchange, owners=owners)
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
        raise OSError(f"the server cannot listen at {host}:{port}: {reason}") from None

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
            raise OSError(f"the server cannot listen at {host}:{port}{reason}; see flower.log")
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


@dataclasses.dataclass
class _Nodes:
    """The nodes behind the gate; the public methods are those of `Link`.

    Attributes:
      state: the state of Flower's SuperLink.
      mailbox: the store of its objects.
      allowance: the bytes that nodes may upload.
      run_id: id of the SuperLink's run.
      visits: the requests that the gate has refused, and the addresses of clients.
      audit: the log of the server.
    """

    state: LinkState
    mailbox: Mailbox
    allowance: Allowance
    _: dataclasses.KW_ONLY
    run_id: int
    visits: Visits
    audit: Audit

    def get_node_ids(self) -> list[int]:
        self.visits.flush()
        return sorted(self.state.get_nodes(self.run_id))

    def exchange(
        self, requests: Mapping[int, Envelope], max_bytes: Mapping[int, int], timeout: float
    ) -> dict[int, Envelope | str]:
        """Sends requests to nodes and waits for their replies.

        Each reply is taken as soon as it is there, whatever the other nodes do. A node that goes
        offline is not waited for.
        """
        names: dict[int, str] = {}
        replies: dict[int, Envelope | str] = {}
        begin = time.monotonic()
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
                online = self.state.get_nodes(self.run_id)
                for node in sorted(waiting):
                    data = self.mailbox.reply(node)
                    if data is not None:
                        replies[node] = _read(data, max_bytes.get(node, 0))
                        self._note("reply", node, requests[node], size=len(data))
                    if data is not None or node not in online:
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
    """Lets a node's next call for messages find the request of that name."""
    message = Message(RecordDict(), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=timeout)
    # Flower names a message by a hash of its content, which is not in it
    message.metadata.__dict__["_message_id"] = name
    state.store_message_ins(message)


def _read(data: bytes, max_bytes: int) -> Envelope | str:
    try:
        return from_bytes(data, max_bytes)
    except ValueError as error:
        return printable(str(error))
