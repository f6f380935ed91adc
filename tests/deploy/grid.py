"""Flower's grid in one process: messages go through its serialisation and this library's client
app."""

import itertools
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.flower import responder


class LocalGrid:
    """Nodes by id, each with what its client answers to envelopes.

    Attributes:
      seen: (node, stage or None, reply's content) of all that came back, as it left the node.
      lost: (node, stage or None) -> whether the node is not heard of.
      changed: (node, stage, content) -> another reply.
    """

    def __init__(self, monkeypatch, clients: dict[int, Callable[[Envelope], Envelope]]):
        for name in ("run_id", "node_id", "task_id"):  # Flower's own processes know who they are
            monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
        self.clients, self.owners = clients, {}
        self.responders = {node: responder(answer) for node, answer in clients.items()}
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in clients}
        self.numbers, self.seen = itertools.count(), []
        self.lost = lambda node, stage: False
        self.changed = lambda node, stage, content: content

    def get_node_ids(self):
        return list(self.clients)

    def expect(self, sizes):
        self.expected = sizes

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self.numbers))
            node, stage = message.metadata.dst_node_id, stage_of(message.content)
            if self.lost(node, stage):
                continue
            there = Message(_carried(message.content), metadata=message.metadata)
            reply = self.responders[node](there, self.contexts[node])
            if reply.has_error():
                replies.append(Message(reply.error, reply_to=message))
                continue
            content = self.changed(node, stage, reply.content)
            self.seen.append((node, stage, content))
            replies.append(Message(_carried(content), reply_to=message))
        return replies


def stage_of(content: RecordDict) -> str | None:
    return content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)


def _carried(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))
