"""Flower's grid in one process: messages go through its serialisation and `node.responder`."""

import itertools
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.node import responder
from tests.deploy.sites import never


class LocalGrid:
    """Nodes, each with a client that answers envelopes.

    Attributes:
      clients: node id -> function that answers an envelope.
      owners: as of `link.Link`.
      seen: (node, stage or None, content) of all replies, as they left the node.
      lost: (node, stage or None) -> whether the message is lost.
      changed: (node, stage, content) -> the content that arrives.
    """

    def __init__(self, monkeypatch, clients: dict[int, Callable[[Envelope], Envelope]]):
        # Flower's `Message` takes its sender from these
        for name in ("run_id", "node_id", "task_id"):
            monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
        self.clients, self.owners = clients, {}
        self.responders = {node: responder(answer) for node, answer in clients.items()}
        self.contexts = {}
        for node in clients:
            self.contexts[node] = Context(1, node, {}, RecordDict(), {})
        self.numbers, self.seen = itertools.count(), []
        self.lost, self.changed = never, content_as_it_is

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
            arrived = Message(_carried(message.content), metadata=message.metadata)
            reply = self.responders[node](arrived, self.contexts[node])
            if reply.has_error():
                replies.append(Message(reply.error, reply_to=message))
                continue
            content = self.changed(node, stage, reply.content)
            self.seen.append((node, stage, content))
            replies.append(Message(_carried(content), reply_to=message))
        return replies


def content_as_it_is(node: int, stage: str | None, content: RecordDict) -> RecordDict:
    """Returns the content of a reply, unchanged."""
    return content


def stage_of(content: RecordDict) -> str | None:
    """Returns the stage of SecAgg+ that a message belongs to; None of a plain one."""
    return content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)


def _carried(content: RecordDict) -> RecordDict:
    """Returns records as they arrive over a wire."""
    return recorddict_from_proto(recorddict_to_proto(content))
