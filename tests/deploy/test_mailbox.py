"""The mailbox: a node takes its own request, leaves its own reply once, and nothing else."""

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.object_store import NoObjectInStoreError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_ht.deploy.mailbox import CALLS, ENDED, FORBIDDEN, MALFORMED, PASSES, UPLOAD, Mailbox
from fedjax_ht.deploy.messages import Envelope, from_bytes
from tests.deploy.wire import bomb, tree_of

NODE, OTHER = 7, 8
REQUEST = Envelope({"kind": "train"}, {"a": np.arange(3, dtype=np.float32)})


@pytest.fixture
def mailbox():
    box = Mailbox()
    box.open(NODE, REQUEST, 100)
    box.open(OTHER, REQUEST, 100)
    return box


def of(mailbox, node=NODE):
    return mailbox._exchanges[node]


def announcement(exchange, node=NODE, tree=None, **metadata) -> PushMessagesRequest:
    named = {"message_id": exchange.reply_id, "reply_to_message_id": exchange.request_id}
    fields = named | {"src_node_id": node}
    message = Message(metadata=Metadata(**(fields | metadata)), content=RecordDict())
    tree = tree or ObjectTree(object_id=exchange.reply_id)
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[message], message_object_trees=[tree]
    )


def status(mailbox, call, request, node=NODE) -> int:
    return mailbox.status(call, node, request.SerializeToString())


def uploaded(name, content=b"reply", node=NODE) -> PushObjectRequest:
    return PushObjectRequest(node=Node(node_id=node), object_id=name, object_content=content)


def test_a_node_takes_its_request_and_leaves_its_reply_once(mailbox):
    exchange, node = of(mailbox), Node(node_id=NODE)
    pull = PullObjectRequest(node=node, object_id=exchange.request_id)
    assert status(mailbox, "pull-object", pull) == PASSES
    assert from_bytes(mailbox.get(exchange.request_id)).arrays["a"].tolist() == [0, 1, 2]
    confirm = ConfirmMessageReceivedRequest(node=node, message_object_id=exchange.request_id)
    assert status(mailbox, "confirm-message-received", confirm) == PASSES
    assert status(mailbox, UPLOAD, uploaded(exchange.reply_id)) == ENDED  # not announced
    assert status(mailbox, "push-messages", announcement(exchange)) == PASSES
    assert status(mailbox, "push-messages", announcement(exchange)) == FORBIDDEN
    assert mailbox.preregister(1, ObjectTree(object_id=exchange.reply_id)) == [exchange.reply_id]
    assert mailbox.reply(NODE) is None and mailbox.get(exchange.reply_id) == b""
    assert status(mailbox, UPLOAD, uploaded(exchange.reply_id)) == PASSES
    mailbox.put(exchange.reply_id, b"reply")
    mailbox.put(exchange.reply_id, b"another")
    assert mailbox.reply(NODE) == b"reply" and mailbox.reply(OTHER) is None
    assert status(mailbox, UPLOAD, uploaded(exchange.reply_id)) == ENDED
    mailbox.close(NODE)
    assert status(mailbox, "push-messages", announcement(exchange)) == ENDED
    assert status(mailbox, "pull-object", pull) == ENDED and mailbox.get(exchange.reply_id) is None
    mailbox.close(OTHER)
    mailbox.close(OTHER)
    assert len(mailbox) == 0 and not mailbox._announced and not mailbox._replies


def test_a_request_has_a_name_that_nobody_can_foretell(mailbox):
    names = {of(mailbox).request_id, of(mailbox, OTHER).request_id}
    names |= {mailbox.open(NODE, REQUEST, 100).request_id for _ in range(3)}
    assert len(names) == 5 and len(mailbox) == 4
    assert all(len(bytes.fromhex(name)) == 32 for name in names)


FORGED = {
    "a tree": lambda e, o: announcement(e, tree=bomb(60, e.reply_id)),
    "a child": lambda e, o: announcement(e, tree=tree_of(e.reply_id, tree_of(o.request_id))),
    "another root": lambda e, o: announcement(e, tree=tree_of("b" * 64)),
    "the request's name": lambda e, o: announcement(e, message_id=e.request_id),
    "a name of its own": lambda e, o: announcement(e, message_id="b" * 64, tree=tree_of("b" * 64)),
    "no name": lambda e, o: announcement(e, message_id=""),
    "a request": lambda e, o: announcement(e, reply_to_message_id=""),
    "from the server": lambda e, o: announcement(e, src_node_id=1),
    "from another": lambda e, o: announcement(e, src_node_id=OTHER),
    "nothing": lambda e, o: PushMessagesRequest(node=Node(node_id=NODE)),
    "two messages": lambda e, o: announcement(e).__class__.FromString(
        announcement(e).SerializeToString() + announcement(e).SerializeToString()
    ),
    "content": lambda e, o: with_content(announcement(e)),
    "an error": lambda e, o: with_error(announcement(e)),
    "another node": lambda e, o: announcement(e, node=OTHER),
}


def with_content(request: PushMessagesRequest) -> PushMessagesRequest:
    request.messages_list[0].content.items.add(key="a")
    return request


def with_error(request: PushMessagesRequest) -> PushMessagesRequest:
    message = Message(metadata=request.messages_list[0].metadata, error=Error(code=1))
    request.messages_list[0].CopyFrom(message)
    return request


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_announcement_does_not_pass(mailbox, name):
    request = FORGED[name](of(mailbox), of(mailbox, OTHER))
    assert status(mailbox, "push-messages", request) == FORBIDDEN
    assert status(mailbox, "push-messages", announcement(of(mailbox))) == PASSES


def test_an_answer_to_another_request_is_too_late_or_another_nodes(mailbox):
    late, other = of(mailbox), of(mailbox, OTHER)
    mailbox.open(NODE, REQUEST, 100)
    assert status(mailbox, "push-messages", announcement(late)) == ENDED
    assert status(mailbox, "push-messages", announcement(other)) == ENDED
    assert status(mailbox, "push-messages", announcement(of(mailbox))) == PASSES
    for name in (late.reply_id, other.reply_id, other.request_id, of(mailbox).request_id, ""):
        assert status(mailbox, UPLOAD, uploaded(name)) == ENDED
    for name in (late.request_id, other.request_id, other.reply_id, of(mailbox).reply_id, ""):
        pull = PullObjectRequest(node=Node(node_id=NODE), object_id=name)
        assert status(mailbox, "pull-object", pull) == ENDED
        confirm = ConfirmMessageReceivedRequest(node=Node(node_id=NODE), message_object_id=name)
        assert status(mailbox, "confirm-message-received", confirm) == ENDED
    pull = PullObjectRequest(node=Node(node_id=OTHER), object_id=other.request_id)
    assert status(mailbox, "pull-object", pull) == FORBIDDEN
    assert status(mailbox, "pull-object", pull, node=OTHER) == PASSES


def test_calls_of_a_node_are_about_itself(mailbox):
    for call, request in (
        ("deactivate-node", DeactivateNodeRequest(node_id=OTHER)),
        ("pull-messages", PullMessagesRequest(node=Node(node_id=OTHER))),
        ("send-node-heartbeat", SendNodeHeartbeatRequest(node=Node(node_id=OTHER))),
    ):
        assert status(mailbox, call, request) == FORBIDDEN
        assert status(mailbox, call, request, node=OTHER) == PASSES
    assert status(mailbox, "activate-node", ActivateNodeRequest()) == PASSES


def test_the_store_itself_takes_nothing_but_expected_replies(mailbox):
    """Whatever passes the gate."""
    exchange = of(mailbox)
    for tree in (ObjectTree(object_id="b" * 64), bomb(3, exchange.reply_id)):
        with pytest.raises(ValueError, match="is not the name of an open exchange"):
            mailbox.preregister(1, tree)
    for name in ("b" * 64, exchange.request_id):
        with pytest.raises(NoObjectInStoreError, match="not the name of an expected reply"):
            mailbox.put(name, b"x")
    with pytest.raises(ValueError, match="101 bytes; at most 100"):
        mailbox.put(exchange.reply_id, b"x" * 101)
    with pytest.raises(NoObjectInStoreError):
        mailbox.get_object_tree("b" * 64)
    assert not mailbox.get_object_tree(exchange.request_id).children
    mailbox.delete(exchange.request_id)
    mailbox.delete_objects_in_run(1)
    assert exchange.request_id in mailbox
    mailbox.clear()
    assert len(mailbox) == 0


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(CALLS)), st.binary(max_size=200))
def test_requests_of_any_kind_are_decided(call, body):
    box = Mailbox()
    exchange = box.open(NODE, REQUEST, 100)
    assert box.status(call, NODE, body) in (PASSES, MALFORMED, FORBIDDEN, ENDED)
    assert box.get(exchange.reply_id) == b"" and len(box) == 2
