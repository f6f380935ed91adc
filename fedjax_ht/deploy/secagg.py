"""The server's half of a secure sum: Flower's SecAgg+ by its stages. Needs the extra `flower`.

Flower's workflow expects a strategy and a client manager, and gives up where a client is lost
before all have each other's shares. Here its stages are called one by one, and a client that is
lost so early was never part of the sum. `masking` is a client's half.
"""

import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Parameters, Status, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (
    SecAggPlusWorkflow,
    WorkflowState,
)

from fedjax_ht.deploy.headers import printable
from fedjax_ht.deploy.masking import with_stage, without_stage
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.secure_sums import MIN_CLIENTS, MODULUS, STEPS, threshold, with_mask_stream

_UNMASK_STAGE = with_mask_stream(SecAggPlusWorkflow.unmask_stage)


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
    link: Any,
    requests: dict[int, Envelope],
    max_bytes: Mapping[int, int],
    *,
    limit: float,
    timeout: float,
) -> SumResult:
    """Sums the vectors that nodes answer to requests.

    Args:
      link: a `link.Link`.
      requests: node id -> the request that its client gets once all have each other's shares.
      max_bytes: node id -> bytes that the arrays of each of its replies may have.
      limit: bound on numbers, positive or negative; larger ones are cut to it.
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
    headers: dict[int, dict[str, Any]] = {}
    grid = _grid(link, requests, max_bytes, lost=lost, headers=headers)
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
                    f"{remaining} of {len(requests)} clients are left, and it needs {required}"
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


def _grid(
    link: Any,
    requests: Mapping[int, Envelope],
    max_bytes: Mapping[int, int],
    *,
    lost: dict[int, str],
    headers: dict[int, dict[str, Any]],
) -> Any:
    """Returns the part of Flower's `Grid` that the stages call, with a link behind it.

    Args:
      link, requests, max_bytes: the arguments of `secure_sum`.
      lost: gets the nodes that do not answer, with the reason.
      headers: gets the header of each node whose client has trained.
    """

    def send_and_receive(messages: list[Message], timeout: float) -> list[Message]:
        sent, replies, trains = {}, [], False
        for message in messages:
            node = message.metadata.dst_node_id
            configs = message.content.config_records[RECORD_KEY_CONFIGS]
            trains = configs[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS
            request = requests[node] if trains else Envelope({"kind": "train"}, {})
            sent[node] = with_stage(request, configs)
        received = link.exchange(sent, max_bytes, timeout)
        for message in messages:
            node = message.metadata.dst_node_id
            try:
                header, configs = _read_stage(received.get(node, "no answer"))
            except ValueError as error:
                lost[node] = printable(str(error))
                continue
            if trains:
                headers[node] = header
            replies.append(Message(_as_result(configs), reply_to=message))
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


def _as_result(configs: ConfigRecord) -> RecordDict:
    """Returns a stage's values as Flower reads them: beside a result, which has no numbers here."""
    result = FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), 1, {})
    content = fitres_to_recorddict(result, keep_input=False)
    content.config_records[RECORD_KEY_CONFIGS] = configs
    return content


def _drop_early_losses(state: WorkflowState) -> None:
    """Drops clients that have not dealt their shares: no other client's vector has their masks."""
    remaining = set(state.active_node_ids)
    neighbours = {}
    for node in remaining:
        neighbours[node] = state.nid_to_neighbours[node] & remaining
    state.sampled_node_ids = remaining
    state.nid_to_neighbours = neighbours
