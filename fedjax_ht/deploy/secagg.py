"""Both halves of a secure sum: Flower's SecAgg+ by its stages. Needs the extra `flower`.

Server: Flower's workflow expects a strategy and a client manager, and gives up where a client is
lost before all have each other's shares. Here its stages are called one by one, and a client that
is lost so early was never part of the sum.

Client: Flower's half masks what this process answers. Its keys and shares are in Flower's
`Context`, which stays on the client's machine between the four messages of a sum. Flower's half
obeys any server, even one that leaves nothing masked, so each stage is checked first.
"""

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Parameters, Status, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (
    SecAggPlusWorkflow,
    WorkflowState,
)

from fedjax_ht.deploy.messages import Envelope, parse_header, printable, to_bytes
from fedjax_ht.deploy.secure_sums import (
    MAX_RANGE,
    MIN_CLIENTS,
    MIN_RANGE,
    MODULUS,
    STEPS,
    threshold,
    with_mask_stream,
)

_UNMASK_STAGE = with_mask_stream(SecAggPlusWorkflow.unmask_stage)
# import_module, since its package hides this module by a function of the same name
_CLIENT_MODULE = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
_CLIENT_HALF = with_mask_stream(
    _CLIENT_MODULE.secaggplus_mod,
    _collect_masked_vectors=with_mask_stream(_CLIENT_MODULE._collect_masked_vectors),
)


class SumResult(NamedTuple):
    """The result of a secure sum.

    Attributes:
      total: float64 [n]; or a line that says why there is none.
      headers: node id -> its client's header, of the clients in the sum.
      lost: node id -> a line that says why its client is not in the sum.
    """

    total: np.ndarray | str
    headers: dict[int, dict[str, Any]]
    lost: dict[int, str]


def secure_sum(
    grid: Any, requests: dict[int, RecordDict], limit: float, timeout: float
) -> SumResult:
    """Sums the vectors that nodes answer to requests.

    Args:
      grid: Flower's `Grid`, or a `link.Link`.
      requests: node id -> the request that its client gets once all have each other's shares.
      limit: larger numbers, positive or negative, are cut to it.
      timeout: seconds that clients have for each of the four stages.
    """
    lost: dict[int, str] = {}
    if len(requests) < MIN_CLIENTS:
        problem = f"{len(requests)} clients take part, and a sum needs {MIN_CLIENTS}"
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
    watched = _watched_grid(grid, lost, timeout)
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
                state.nid_to_fitins = {node: requests[node] for node in state.active_node_ids}
            if not stage(watched, context, state):
                remaining = len(state.active_node_ids)
                problem = (
                    f"{remaining} of {len(requests)} clients are left, and it needs {required}"
                )
                return SumResult(problem, {}, lost)
        headers = {proxy.node_id: _header(result.metrics) for proxy, result in results}
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
      results: takes [(proxy, FitRes)].
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


def _watched_grid(grid: Any, lost: dict[int, str], timeout: float) -> Any:
    """Wraps a grid so that `lost` gets the nodes that do not answer, with the reason.

    A message expires with its stage: one that is answered later would join another sum.
    """

    def send_and_receive(messages: list[Message], timeout: float = timeout) -> list[Message]:
        for message in messages:
            message.metadata.ttl = timeout
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        by_request = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for message in messages:
            node, reply = message.metadata.dst_node_id, by_request.get(message.metadata.message_id)
            if reply is None:
                lost[node] = "no answer"
            elif reply.has_error():
                lost[node] = printable(reply.error.reason or f"error {reply.error.code}")
        return replies

    return SimpleNamespace(send_and_receive=send_and_receive)


def _drop_early_losses(state: WorkflowState) -> None:
    """Drops clients that have not dealt their shares: no other client's vector has their masks."""
    remaining = set(state.active_node_ids)
    neighbours = {}
    for node in remaining:
        neighbours[node] = state.nid_to_neighbours[node] & remaining
    state.sampled_node_ids = remaining
    state.nid_to_neighbours = neighbours


def _header(metrics: dict[str, Any]) -> dict[str, Any]:
    """Parses a client's header; {} of an invalid one, whose vector is in the sum all the same."""
    try:
        return parse_header(metrics.get("json"))
    except ValueError:
        return {}


def masked_reply(
    message: Message, context: Context, answer: Callable[[Message], Envelope]
) -> Message:
    """Replies to a message of SecAgg+ as a client.

    Args:
      message: the server's.
      context: Flower's, with the client's keys and shares.
      answer: makes the reply whose vector leaves masked.

    Raises:
      ValueError: the sum would not hide this client, or the client has nothing to add. One line.
    """
    config = message.content.config_records[RECORD_KEY_CONFIGS]
    check_stage(config, message.metadata.dst_node_id)

    def train(message: Message, context: Context) -> Message:
        kept: Any = context.state.config_records[RECORD_KEY_STATE]
        limit = float(kept[Key.CLIPPING_RANGE])
        reply = answer(message)
        header = reply.header
        if "error" in header or not header["finite"]:
            raise ValueError(header.get("error", "its result is not finite"))
        (vector,) = reply.arrays.values()
        vector = vector.astype(np.float64)
        num_cut = int(np.count_nonzero(np.abs(vector) > limit))
        if num_cut:
            warning = f"{num_cut} entries are beyond --sum_range={limit:g} and were cut"
            header = header | {"warning": warning}
        parameters = Parameters([to_bytes(vector)], "numpy.ndarray")
        result = FitRes(Status(Code.OK, ""), parameters, 1, {"json": json.dumps(header)})
        return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)

    reply = _CLIENT_HALF(message, context, train)
    if any(len(arrays) for arrays in reply.content.array_records.values()):
        raise ValueError("Flower has left arrays unmasked; nothing is sent")
    return reply


def check_stage(config: Mapping[str, Any], node: int) -> None:
    """Refuses a stage after which the server would know more than a sum of `MIN_CLIENTS` clients.

    Args:
      config: of the server's message.
      node: id of this client's node.

    Raises:
      ValueError: it would. One line.
    """
    stage, problem = config[Key.STAGE], ""
    if stage == Stage.SETUP:
        problem = _setup_problem(config)
    elif stage == Stage.SHARE_KEYS:
        problem = _size_problem({int(name) for name in config.keys() - {Key.STAGE}} | {node})
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        problem = _size_problem({*config[Key.SOURCE_LIST], node})
    elif stage == Stage.UNMASK:
        active, dead = set(config[Key.ACTIVE_NODE_ID_LIST]), set(config[Key.DEAD_NODE_ID_LIST])
        # of an active client the server may know the seed of its own mask, of a dead one its key:
        # with both it has the vector
        problem = "both secrets of one client" if active & dead else _size_problem(active)
    if problem:
        raise ValueError(f"the server asks for a sum that would not hide a client: {problem}")


def _size_problem(nodes: set[int]) -> str:
    return f"a sum of {len(nodes)}" if len(nodes) < MIN_CLIENTS else ""


def _setup_problem(config: Mapping[str, Any]) -> str:
    expected = {Key.TARGET_RANGE: STEPS, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1.0}
    for name, value in expected.items():
        if config[name] != value:
            return f"{name} is {config[name]}, not {value}"
    limit = config[Key.CLIPPING_RANGE]
    # numbers beyond the range are cut: with a small one the sum is of signs, with a large one of 0
    if not (isinstance(limit, float) and MIN_RANGE <= limit <= MAX_RANGE):
        return f"{Key.CLIPPING_RANGE} is {limit}, not from {MIN_RANGE:g} to {MAX_RANGE:g}"
    num_clients, num_shares = config[Key.SAMPLE_NUMBER], config[Key.SHARE_NUMBER]
    required = config[Key.THRESHOLD]
    if num_shares != num_clients or required < threshold(num_clients):
        return f"{required} of {num_shares} shares of {num_clients} clients take off a mask"
    return ""
