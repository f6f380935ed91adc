"""A link in one process: messages go through their bytes and `node.responder`."""

from collections.abc import Callable

from flwr.app import Context, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.masking import STAGE
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.node import responder
from tests.deploy.sites import called, never


class LocalLink:
    """Nodes, each with a client that answers envelopes. `seen` has (node, stage, reply) of all replies
    as they left; `lost` and `changed` may be set, of (node, stage) and (node, stage, reply)."""

    def __init__(self, monkeypatch, clients: dict[int, Callable[[Envelope], Envelope]]):
        # Flower's `Message` takes its sender from these
        for name in ("run_id", "node_id", "task_id"):
            monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
        self.clients, self.owners = clients, {}
        self.responders = {node: responder(answer) for node, answer in clients.items()}
        self.contexts = {}
        for node in clients:
            self.contexts[node] = Context(1, node, {}, RecordDict(), {})
        self.seen, self.lost, self.changed = [], never, reply_as_it_is

    def get_node_ids(self):
        return list(self.clients)

    def exchange(self, requests, max_bytes, timeout):
        self.max_bytes, replies = max_bytes, {}
        for node, request in requests.items():
            stage = stage_of(request)
            if self.lost(node, stage):
                continue
            reply = self.responders[node](called(request), self.contexts[node])
            reply = self.changed(node, stage, reply)
            self.seen.append((node, stage, reply))
            replies[node] = called(reply)
        return replies


def reply_as_it_is(node: int, stage: str | None, reply: Envelope) -> Envelope:
    return reply


def stage_of(request: Envelope) -> str | None:
    """Returns the stage of SecAgg+ that a message belongs to; None of a plain one."""
    return request.header.get(STAGE, {}).get("values", {}).get(Key.STAGE)
