"""Transport of a deployment: requests to the clients behind Flower's nodes, and their replies.

Needs the extra `flower`. `link` is the server's end of the wire, `node` a client's.
"""

import dataclasses
import functools
import logging
import logging.handlers
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import FitIns, Parameters, bytes_to_ndarray, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (
    SecAggPlusWorkflow,
    WorkflowState,
)

from fedjax_ht.deploy.audit import Audit, no_audit
from fedjax_ht.deploy.masking import fit_result, with_stage, without_stage
from fedjax_ht.deploy.messages import Envelope, array_bytes, is_count, printable
from fedjax_ht.deploy.secure_sums import (
    MIN_CLIENTS,
    MODULUS,
    SHARE_BYTES,
    STEPS,
    threshold,
    with_mask_stream,
)
from fedjax_ht.deploy.server import ProblemOf, Transport

_UNMASK_STAGE = with_mask_stream(SecAggPlusWorkflow.unmask_stage)
LOG_BYTES = 1 << 20
"""Most bytes of Flower's log, and of the previous one."""
MEET_SECONDS = 1.0
HELLO_SECONDS = 30.0
"""How long a round waits for a node that does not identify itself."""


class SumResult(NamedTuple):
    """The result of a secure sum.

    Attributes:
      total: float64 [n]; or a message that explains why there is none.
      headers: node id -> its client's header, for the clients in the sum.
      lost: node id -> message that explains why its client is not in the sum.
    """

    total: np.ndarray | str
    headers: dict[int, dict[str, Any]]
    lost: dict[int, str]


def secure_sum(
    link: Any,
    requests: dict[int, Envelope],
    length: int,
    *,
    limit: float,
    timeout: float,
    problem_of: ProblemOf,
) -> SumResult:
    """Sums the vectors with which nodes answer requests, by the stages of Flower's SecAgg+.

    Flower's workflow gives up if a client is lost before all have each other's shares. Here the sum
    skips such a client, and one whose vector or header is invalid. `masking` is a client's half.

    Args:
      link: a `link.Link`.
      requests: node id -> the request that its client gets once all have each other's shares.
      length: length of each vector.
      limit: bound on the absolute values of numbers; larger ones are clipped.
      timeout: seconds that clients have for each of the four stages.
      problem_of: (node id, header) -> what is wrong with the reply that has the vector, or "".
    """
    lost: dict[int, str] = {}
    if len(requests) < MIN_CLIENTS:
        problem = f"{len(requests)} clients take part, but a sum needs {MIN_CLIENTS}"
        return SumResult(problem, {}, lost)
    required, results = threshold(len(requests)), []
    workflow = SecAggPlusWorkflow(
        1.0,  # each client deals a share to every other
        required,
        max_weight=1.0,
        clipping_range=limit,
        quantization_range=STEPS,
        modulus_range=MODULUS,
        timeout=timeout,
    )
    state = WorkflowState()
    context = _workflow_context(list(requests), results)
    headers: dict[int, dict[str, Any]] = {}
    grid = _grid(link, requests, length, problem_of, lost=lost, headers=headers)
    stages = (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        functools.partial(_UNMASK_STAGE, workflow),
    )
    try:
        for stage in stages:
            if stage == workflow.collect_masked_vectors_stage:
                _drop_early_losses(state)
                state.nid_to_fitins = {node: RecordDict() for node in state.active_node_ids}
            if not stage(grid, context, state):
                remaining = len(state.active_node_ids)
                problem = (
                    f"{remaining} of {len(requests)} clients are left, but it needs {required}"
                )
                return SumResult(problem, {}, lost)
        headers = {proxy.node_id: headers[proxy.node_id] for proxy, _ in results}
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
    # Flower trusts what clients send; a malformed message costs the sum, not the run
    except Exception as error:
        return SumResult(f"{type(error).__name__}: {printable(str(error))}", {}, lost)
    for node in headers:
        lost.pop(node, None)
    return SumResult(mean * len(headers), headers, lost)


def _workflow_context(nodes: list[int], results: list) -> Any:
    """Returns the parts of a server's context that the stages read.

    Args:
      nodes: ids of the nodes to ask.
      results: receives [(proxy, FitRes)].
    """
    proxies = [SimpleNamespace(node_id=node) for node in nodes]
    empty = FitIns(Parameters([], "numpy.ndarray"), {})  # the requests take its place

    def configure_fit(*_):
        return [(proxy, empty) for proxy in proxies]

    def aggregate_fit(number, fit_results, failures):
        results.extend(fit_results)
        return None, {}

    strategy = SimpleNamespace(configure_fit=configure_fit, aggregate_fit=aggregate_fit)
    records = {
        MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 0}),
        MAIN_PARAMS_RECORD: ArrayRecord(),
    }
    manager = SimpleNamespace(num_available=lambda: len(proxies))
    return SimpleNamespace(state=RecordDict(records), strategy=strategy, client_manager=manager)


def _grid(
    link: Any,
    requests: Mapping[int, Envelope],
    length: int,
    problem_of: ProblemOf,
    *,
    lost: dict[int, str],
    headers: dict[int, dict[str, Any]],
) -> Any:
    """Returns the part of Flower's `Grid` that the stages call, backed by a link.

    Args:
      link, requests, length, problem_of: arguments of `secure_sum`.
      lost: receives the nodes without a valid answer, with the reason.
      headers: receives the header of each node whose client has trained.
    """
    vector_bytes = array_bytes("vector", np.int64, (length,))
    max_bytes = dict.fromkeys(requests, vector_bytes + SHARE_BYTES * len(requests))

    def send_and_receive(messages: list[Message], timeout: float) -> list[Message]:
        sent, replies, trains, stage = {}, [], False, ""
        for message in messages:
            node = message.metadata.dst_node_id
            configs = message.content.config_records[RECORD_KEY_CONFIGS]
            stage = str(configs[Key.STAGE])  # the same in all messages
            trains = stage == Stage.COLLECT_MASKED_VECTORS
            request = requests[node] if trains else Envelope({"kind": "train"}, {})
            sent[node] = with_stage(request, configs)
        received = link.exchange(sent, max_bytes, timeout)
        for message in messages:
            node = message.metadata.dst_node_id
            try:
                header, configs = _read_stage(received.get(node, "no answer"))
                _check_form(configs, stage)
                if trains:
                    _check_vector(configs, length)
                    if problem := problem_of(node, header):
                        raise ValueError(problem)
            except ValueError as error:
                lost[node] = printable(str(error))
                continue
            if trains:
                headers[node] = header
            content = fit_result([])  # Flower reads a stage's values beside a result
            content.config_records[RECORD_KEY_CONFIGS] = configs
            replies.append(Message(content, reply_to=message))
        return replies

    return SimpleNamespace(send_and_receive=send_and_receive)


def _read_stage(reply: Envelope | str) -> tuple[dict[str, Any], ConfigRecord]:
    """Returns a reply's header and its stage's values.

    Raises:
      ValueError: there are none. One line.
    """
    if isinstance(reply, str):
        raise ValueError(reply)
    if "error" in reply.header:
        raise ValueError(reply.header["error"])
    plain, configs = without_stage(reply)
    return plain.header, configs


FORMS: dict[str, dict[str, type]] = {
    Stage.SETUP: {Key.PUBLIC_KEY_1: bytes, Key.PUBLIC_KEY_2: bytes},
    Stage.SHARE_KEYS: {Key.DESTINATION_LIST: int, Key.CIPHERTEXT_LIST: bytes},
    Stage.COLLECT_MASKED_VECTORS: {Key.MASKED_PARAMETERS: bytes},
    Stage.UNMASK: {Key.NODE_ID_LIST: int, Key.SHARE_LIST: bytes},
}
"""Stage -> the values that Flower reads from replies: one of a kind in the first, else lists."""


def _check_form(configs: Mapping[str, Any], stage: str) -> None:
    """Rejects a reply without the values of its stage: Flower's error would cost the whole sum."""
    for name, kind in FORMS[stage].items():
        value = configs.get(name)
        values = [value] if stage == Stage.SETUP else value
        if not isinstance(values, list) or not all(isinstance(x, kind) for x in values):
            raise ValueError(f"{name} in its reply is missing or invalid")


def _check_vector(configs: Mapping[str, Any], length: int) -> None:
    """Rejects a masked vector, or the factor before it, of a length that Flower would broadcast."""
    parts = configs[Key.MASKED_PARAMETERS]
    shapes = [bytes_to_ndarray(part).shape for part in parts]
    if shapes != [(1,), (length,)]:
        raise ValueError(f"its masked vector has the shapes {shapes}, not [(1,), ({length},)]")


def _drop_early_losses(state: WorkflowState) -> None:
    """Drops clients that have not dealt their shares: no other vector contains their masks."""
    remaining = set(state.active_node_ids)
    neighbours = {}
    for node in remaining:
        neighbours[node] = state.nid_to_neighbours[node] & remaining
    state.sampled_node_ids = remaining
    state.nid_to_neighbours = neighbours


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
      tell: called with a message for the server's operator.
      limit: bound on the numbers in a sum, see `secure_sum`.
      audit: the server's log.
    """
    clients = _NodeClients(
        link=link, patience=patience, timeout=timeout, tell=tell, limit=limit, audit=audit
    )
    return Transport(
        clients.meet, clients.exchange, clients.add, tell=tell, patience=patience, audit=audit
    )


@dataclasses.dataclass
class _NodeClients:
    """The clients behind Flower's nodes; the public methods are those of `Transport`.

    Attributes:
      link, patience, timeout, tell, limit, audit: arguments of `flower_transport`.
      online: the last `link.Link.online_nodes`.
      hellos: node id -> header of its client's reply to "hello", for online nodes.
      refused: ids of online nodes that are excluded.
      silent: node id -> time before which it is not asked again, for nodes that did not answer.
    """

    link: Any
    patience: float
    timeout: float
    tell: Callable[[str], None]
    limit: float
    audit: Audit
    online: dict[int, str] = dataclasses.field(default_factory=dict)
    hellos: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    refused: set[int] = dataclasses.field(default_factory=set)
    silent: dict[int, float] = dataclasses.field(default_factory=dict)

    def meet(self, hello: Envelope, min_clients: int) -> dict[int, dict[str, Any]]:
        end = time.monotonic() + self.patience
        while True:
            before, self.online = self.online, self.link.online_nodes()
            # a client that was started again may have another config, or other samples
            same = {node for node, since in self.online.items() if before.get(node) == since}
            self.refused &= same
            for node in self.hellos.keys() - same:
                client = self.hellos.pop(node)["client"]
                self.tell(f"client {client} has disconnected")
                self.audit("disconnected", client=client)
                self.refused.clear()  # one of them may be this client, started again
            self._greet_all(self.online.keys() - self.hellos.keys() - self.refused, hello)
            if len(self.hellos) >= min_clients or time.monotonic() > end:
                return {header["client"]: header for header in self.hellos.values()}
            time.sleep(MEET_SECONDS)

    def _greet_all(self, nodes: set[int], hello: Envelope) -> None:
        """Asks nodes for their clients' headers."""
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
                self._note_silence(node, "it did not identify itself")
                self.silent[node] = time.monotonic() + self.timeout

    def _name(self, node: int) -> str:
        """Returns a node's name in messages: that of the client whose key it has."""
        owners = self.link.owners
        return f"client {owners[node]}" if node in owners else f"node {node}"

    def _greet(self, node: int, reply: Envelope | str) -> None:
        if isinstance(reply, str):  # not refused: it is asked again next time
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
        """Returns why a node cannot be the client that it claims to be; "" if it can."""
        if not is_count(client):
            return "it did not say which client it is"
        if self.link.owners.get(node, client) != client:
            return f"its key is that of client {self.link.owners[node]}"
        if client in self._nodes():
            return f"client {client} is already connected"
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
        lengths: Mapping[str, int],
        problem_of: ProblemOf,
    ) -> tuple[dict[int, Envelope], dict[str, np.ndarray | str]]:
        nodes, replies, totals = self._nodes(), {}, {}
        for name, clients in groups.items():
            sent = {nodes[client]: requests[client] for client in clients if client in nodes}
            result = secure_sum(
                self.link,
                sent,
                lengths[name],
                limit=self.limit,
                timeout=self.timeout,
                problem_of=lambda node, header: problem_of(self.hellos[node]["client"], header),
            )
            for node, header in result.headers.items():
                replies[self.hellos[node]["client"]] = Envelope(header, {})
            for node, problem in result.lost.items():
                replies[self.hellos[node]["client"]] = Envelope({"error": problem}, {})
            totals[name] = result.total
        return replies, totals


def log_to(path: Path) -> None:
    """Writes Flower's log to a file instead of the terminal, at most two of `LOG_BYTES`.

    The size is limited, since strangers can cause log lines.
    """
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name in ("flwr", "uvicorn", "httpx", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
