"""The server's half of a secure sum: Flower's SecAgg+ by its stages. Needs the extra `flower`.

Flower's workflow wants a strategy and a client manager, and gives up where a client is lost before
all have each other's shares; its stages are called here one by one, and who is lost so early was
never part of the sum.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation import secaggplus_workflow

from fedjax_ht.deploy.headers import parsed, printable
from fedjax_ht.deploy.masks import FEWEST, MODULUS, STEPS, threshold, with_stream

_UNMASK = with_stream(secaggplus_workflow.SecAggPlusWorkflow.unmask_stage)


class Summed(NamedTuple):
    """What came of a sum.

    Attributes:
      total: float64 [n]; or why there is none, in words.
      heads: node -> what its client said, of those in the sum.
      lost: node -> why it is not in it.
    """

    total: np.ndarray | str
    heads: dict[int, dict[str, Any]]
    lost: dict[int, str]


def sum_of(grid: Any, letters: dict[int, RecordDict], limit: float, timeout: float) -> Summed:
    """The sum of what nodes answer to letters, each a vector.

    Args:
      grid: Flower's.
      letters: node -> what its client gets once all have each other's shares.
      limit: numbers beyond it, up and down, are cut.
      timeout: seconds that the clients have for each of the four stages.
    """
    lost: dict[int, str] = {}
    if len(letters) < FEWEST:
        return Summed(f"{len(letters)} clients are there, and it takes {FEWEST}", {}, lost)
    enough, results = threshold(len(letters)), []
    workflow = secaggplus_workflow.SecAggPlusWorkflow(
        1.0,  # a share for everybody
        enough,
        max_weight=1.0,
        clipping_range=limit,
        quantization_range=STEPS,
        modulus_range=MODULUS,
        timeout=timeout,
    )
    state = secaggplus_workflow.WorkflowState()
    context, watched = _context(list(letters), results), _watched(grid, lost, timeout)
    stages = (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        functools.partial(_UNMASK, workflow),
    )
    try:
        for stage in stages:
            if stage == workflow.collect_masked_vectors_stage:
                _without_early_losses(state)
                state.nid_to_fitins = {node: letters[node] for node in state.active_node_ids}
            if not stage(watched, context, state):
                active = len(state.active_node_ids)
                left = f"{active} of {len(letters)} clients are left, and it takes {enough}"
                return Summed(left, {}, lost)
        heads = {proxy.node_id: _header(told.metrics) for proxy, told in results}
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
    # Flower believes what clients send; a bad message costs the sum, not the run
    except Exception as error:
        return Summed(f"{type(error).__name__}: {printable(str(error))}", {}, lost)
    return Summed(
        mean * len(heads), heads, {node: why for node, why in lost.items() if node not in heads}
    )


def _context(nodes: list[int], results: list) -> SimpleNamespace:
    """What the stages read: whom to ask, and where to leave results, [(proxy, FitRes)]."""
    proxies = [SimpleNamespace(node_id=node) for node in nodes]
    nothing = FitIns(Parameters([], "numpy.ndarray"), {})  # the letters take its place

    def aggregate_fit(number, found, failures):
        results.extend(found)
        return None, {}

    strategy = SimpleNamespace(
        configure_fit=lambda *_: [(p, nothing) for p in proxies], aggregate_fit=aggregate_fit
    )
    records = {
        MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 0}),
        MAIN_PARAMS_RECORD: ArrayRecord(),
    }
    manager = SimpleNamespace(num_available=lambda: len(proxies))
    return SimpleNamespace(state=RecordDict(records), strategy=strategy, client_manager=manager)


def _watched(grid: Any, lost: dict[int, str], timeout: float) -> SimpleNamespace:
    """A grid that notes who does not answer, and why, and whose messages do not outlive their
    stage."""

    def send_and_receive(messages: list[Message], timeout: float = timeout) -> list[Message]:
        for message in messages:
            message.metadata.ttl = timeout
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        said = {asked[reply.metadata.reply_to_message_id]: reply for reply in replies}
        for node in asked.values():
            if node not in said:
                lost[node] = "no answer"
            elif said[node].has_error():
                lost[node] = printable(said[node].error.reason or f"error {said[node].error.code}")
        return replies

    return SimpleNamespace(send_and_receive=send_and_receive)


def _without_early_losses(state: secaggplus_workflow.WorkflowState) -> None:
    """Who has not dealt its shares has no masks in the others' vectors, and no shares by which to
    take them off."""
    there = state.sampled_node_ids = set(state.active_node_ids)
    state.nid_to_neighbours = {
        node: near & there for node, near in state.nid_to_neighbours.items() if node in there
    }


def _header(metrics: dict[str, Any]) -> dict[str, Any]:
    """A client's header; {} of one that cannot be read, whose vector is in the sum all the same."""
    try:
        return parsed(metrics.get("json"))
    except ValueError:
        return {}
