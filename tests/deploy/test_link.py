"""Both ends of Flower in one process, on loopback: clients, strangers and hostile clients."""

import contextlib
import resource
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient

from fedjax_ht.deploy import node
from fedjax_ht.deploy.flower import flower_transport, to_records
from fedjax_ht.deploy.messages import Envelope
from tests.deploy.wire import (
    HELLO,
    MEGABYTE,
    asking,
    attending,
    client,
    fleet,
    listening,
    sent_in_vain,
    status_of,
    wait_until,
)


@pytest.fixture(scope="module")
def keys():
    """Returns {client id: private key}."""
    return {client: ec.generate_private_key(ec.SECP384R1()) for client in range(4)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(node, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(node, "RETRY_SECONDS", 0.1)


def test_clients_answer_by_their_keys_and_go(keys):
    with listening(keys) as (link, port, lines), contextlib.ExitStack() as stack:
        for i in range(3):
            stack.enter_context(attending(port, keys[i], client(i, {"a": np.arange(1000.0)})))
        meet, exchange, _ = flower_transport(link, 20.0, 20.0, lines.append)
        assert (
            sorted(meet(HELLO, 3))
            == [0, 1, 2]
            == sorted(link.owners[n] for n in link.get_node_ids())
        )
        letter = Envelope({"kind": "train"}, {"b": np.ones(10**5, np.float32)})
        replies = exchange(dict.fromkeys(range(3), letter), dict.fromkeys(range(3), 9000))
        assert [replies[i].arrays["a"].sum() for i in range(3)] == [499500.0] * 3 and lines == []
        stack.close()
        assert meet(HELLO, 0) == {} and sorted(lines) == [
            f"client {i} has disconnected" for i in range(3)
        ]


def test_a_key_is_one_clients(keys):
    with listening(keys) as (link, port, lines), attending(port, keys[1], client(0)):
        meet, _, _ = flower_transport(link, 0.0, 20.0, lines.append)
        wait_until(link.get_node_ids)
        assert meet(HELLO, 0) == {}
        (line,) = lines
        assert line.endswith("(client 0) is left out: its key is that of client 1")


def test_a_client_whose_key_is_not_known_ends_in_one_line(keys):
    with (
        listening({0: keys[0]}) as (link, port, _),
        attending(port, keys[1], client(1), 0.5) as lines,
    ):
        wait_until(lambda: len(lines) == 2)
        address, why = f"127.0.0.1:{port}", "it does not know the key"
        assert lines[0] == f"{address} refuses this client ({why}); trying again for 0.5 s"
        assert lines[1] == f"{address} has refused this client for 0.5 s: {why}"
        assert link.get_node_ids() == []


@pytest.mark.parametrize("keyed", [True, False])
def test_a_stranger_starts_nothing_registers_nobody_and_removes_nobody(keys, keyed):
    """Without a list of keys every key is a client's, and no more than that."""
    with (
        listening(keys if keyed else None) as (link, port, lines),
        attending(port, keys[0] if keyed else None, client(0)) as client_lines,
    ):
        meet, exchange, _ = flower_transport(link, 20.0, 20.0, lines.append)
        meet(HELLO, 1)
        ((online,), address) = link.get_node_ids(), f"127.0.0.1:{port}"
        public = public_key_to_bytes(generate_key_pairs()[1])
        with ControlHttpClient.from_server_address(address, True, None, []) as control:
            assert status_of(lambda: control.StartRun(StartRunRequest())) == 404
            assert status_of(lambda: control.ListRuns(ListRunsRequest())) == 404
            assert (
                status_of(lambda: control.RegisterNode(RegisterNodeRequest(public_key=public)))
                == 404
            )
            assert (
                status_of(lambda: control.UnregisterNode(UnregisterNodeRequest(node_id=online)))
                == 404
            )
        with RuntimeHttpClient.from_server_address(address, True, None, []) as runtime:
            assert status_of(lambda: runtime.AcquireTask(AcquireTaskRequest())) == 404
        with fleet(port) as stranger:

            def register():
                return stranger.RegisterNode(RegisterNodeFleetRequest(public_key=public))

            assert status_of(register) == 404
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=15)
            assert status_of(lambda: stranger.ActivateNode(request)) == 401
            deactivate = DeactivateNodeRequest(node_id=online)
            assert status_of(lambda: stranger.DeactivateNode(deactivate)) == 401
        assert link.get_node_ids() == [online] and client_lines in ([], ["connected"])
        assert exchange({0: Envelope({"kind": "train"}, {})}, {})[0].header == {
            "client": 0,
            "kind": "train",
        }


@pytest.mark.parametrize("keyed", [True, False])
def test_messages_of_a_stranger_are_not_read(keys, keyed):
    """500 MB by Content-Length and by chunks, to each of Flower's APIs."""
    with listening(keys if keyed else None) as (_, port, _):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in (
            "fleet/push-object",
            "fleet/pull-messages",
            "control/start-run",
            "runtime/push-object",
        ):
            for declared in (True, False):
                assert sent_in_vain(port, f"/v1/{path}", declared) < 64 * MEGABYTE
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def change_replies(change, monkeypatch):
    """Changes clients' replies before they leave, as another Flower could."""
    unchanged_push = node._push

    def push(fleet_client, this_node, reply):
        unchanged_push(fleet_client, this_node, change(reply))

    monkeypatch.setattr(node, "_push", push)


def other_record(reply):
    reply.content["header"] = ConfigRecord({"json": [1, 2]})
    return reply


def other_names(reply):
    return Message(RecordDict({"x": ConfigRecord({"json": "{}"})}), metadata=reply.metadata)


def no_json(reply):
    reply.content["header"] = ConfigRecord({"json": "[" * 50_000})
    return reply


def forged_error(reply):
    return Message(
        Error(code=2, reason="lost\nround 9: all is well\x1b[2J"), metadata=reply.metadata
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_record, "not list"),
        (other_names, "no message of this library"),
        (no_json, "no header: maximum recursion depth"),
        (forged_error, r"lost round 9: all is well\x1b[2J"),
    ],
)
def test_answers_of_a_hostile_client_are_one_line(keys, change, message, monkeypatch):
    lines = []
    with listening(keys) as (link, port, _), attending(port, keys[0], client(0)):
        meet, exchange, _ = flower_transport(link, 20.0, 20.0, lines.append)
        meet(HELLO, 1)
        change_replies(change, monkeypatch)
        answer = exchange({0: Envelope({"kind": "evaluate"}, {})}, {})[0]
        assert message in answer.header["error"] and answer.header["error"].isprintable()


def test_an_answer_is_no_longer_than_its_form(keys):
    """A longer one that the gate still passes is refused where it is read."""
    lines, sizes = [], iter([(0, 400), (0, 2000), (0, 8 * MEGABYTE)])

    def answer(message):
        if message.header["kind"] == "hello":
            return client(0)(message)
        return Envelope({"client": 0}, {"a": np.zeros(next(sizes)[1], np.uint8)})

    with listening(keys) as (link, port, link_lines), attending(port, keys[0], answer):
        meet, exchange, _ = flower_transport(link, 20.0, 3.0, lines.append)
        meet(HELLO, 1)
        train = {0: Envelope({"kind": "train"}, {})}
        assert exchange(train, {0: 600})[0].arrays["a"].size == 400
        error = exchange(train, {0: 600})[0].header["error"]
        assert error == "it has 2128 bytes of arrays, and may have 600"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error = exchange(train, {0: 600}).get(0)
        assert error is None or "error" in error.header
        assert link_lines == ["client 0 has sent more bytes than it may; they were not read"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024


def test_a_client_is_not_taken_for_the_server_nor_for_another_client(keys):
    """Flower looks at who signs a request, not at whom its message says that it is from."""
    with listening(keys) as (link, port, _), attending(port, keys[0], client(0)):
        wait_until(link.get_node_ids)
        (victim,) = link.get_node_ids()
        with fleet(port, keys[1]) as hostile:
            public = public_key_to_bytes(keys[1].public_key())
            hostile_node = hostile.ActivateNode(
                ActivateNodeRequest(public_key=public, heartbeat_interval=15)
            ).node_id
            for source, target, to in (
                (1, victim, ""),
                (victim, 1, "a" * 64),
                (hostile_node, victim, ""),
            ):
                message = Message(
                    to_records(Envelope({"kind": "train"}, {})),
                    dst_node_id=target,
                    message_type="train",
                )
                message.metadata.__dict__.update(_src_node_id=source, _reply_to_message_id=to)
                with no_object_id_recompute():
                    message.metadata.__dict__["_message_id"] = message.object_id
                    request = PushMessagesRequest(
                        node=Node(node_id=hostile_node),
                        messages_list=[message_to_proto(remove_content_from_message(message))],
                        message_object_trees=[get_object_tree(message)],
                    )
                link.expect({hostile_node: MEGABYTE})
                threading.Thread(
                    target=link.send_and_receive,
                    args=([asking(hostile_node)],),
                    kwargs={"timeout": 0.5},
                ).start()
                time.sleep(0.2)
                assert status_of(lambda request=request: hostile.PushMessages(request)) == 403
