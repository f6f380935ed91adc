"""Both ends of Flower in one process, on loopback: clients, strangers and hostile clients."""

import contextlib
import functools
import resource
import threading
import time
from datetime import timedelta

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    RegisterNodeFleetRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedjax_ht.deploy import node
from fedjax_ht.deploy.flower import flower_transport
from fedjax_ht.deploy.mailbox import reply_id_of
from fedjax_ht.deploy.messages import Envelope, array_bytes, to_bytes
from tests.deploy.test_messages import written
from tests.deploy.wire import (
    HELLO,
    MEGABYTE,
    RawNode,
    attending,
    bomb,
    client,
    fleet,
    listening,
    sent_in_vain,
    status_of,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("quick")


def test_clients_answer_by_their_keys_and_go(keys):
    with listening(keys) as (link, port, lines), contextlib.ExitStack() as stack:
        for i in range(3):
            stack.enter_context(attending(port, keys[i], client(i, {"a": np.arange(1000.0)})))
        meet, exchange, *_ = flower_transport(link, 20.0, 20.0, lines.append)
        assert sorted(meet(HELLO, 3)) == [0, 1, 2]
        assert sorted(link.owners[n] for n in link.online_nodes()) == [0, 1, 2]
        letter = Envelope({"kind": "train"}, {"b": np.ones(10**5, np.float32)})
        replies = exchange(dict.fromkeys(range(3), letter), dict.fromkeys(range(3), 9000))
        assert [replies[i].arrays["a"].sum() for i in range(3)] == [499500.0] * 3 and lines == []
        stack.close()
        assert meet(HELLO, 0) == {}
        assert sorted(lines) == [f"client {i} has disconnected" for i in range(3)]


def test_a_key_is_one_clients(keys):
    with listening(keys) as (link, port, lines), attending(port, keys[1], client(0)):
        meet, *_ = flower_transport(link, 0.0, 20.0, lines.append)
        wait_until(link.online_nodes)
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
        assert lines[0] == f"{address} refuses this client ({why}); retrying for 0.5 s"
        assert lines[1] == f"{address} has refused this client for 0.5 s: {why}"
        assert link.online_nodes() == {}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_stranger_starts_nothing_registers_nobody_and_removes_nobody(keys, keyed):
    """Without a list of keys every key is a client's, and no more than that."""
    with (
        listening(keys if keyed else None) as (link, port, lines),
        attending(port, keys[0] if keyed else None, client(0)) as client_lines,
    ):
        meet, exchange, *_ = flower_transport(link, 20.0, 20.0, lines.append)
        meet(HELLO, 1)
        ((online,), address) = link.online_nodes(), f"127.0.0.1:{port}"
        public = public_key_to_bytes(generate_key_pairs()[1])
        with ControlHttpClient.from_server_address(address, True, None, []) as control:
            assert status_of(lambda: control.StartRun(StartRunRequest())) == 404
        with fleet(port) as stranger:
            join = RegisterNodeFleetRequest(public_key=public)
            assert status_of(lambda: stranger.RegisterNode(join)) == 404
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=15)
            assert status_of(lambda: stranger.ActivateNode(request)) == 401
            deactivate = DeactivateNodeRequest(node_id=online)
            # without a list the stranger has a node, though not this one
            refusal = 401 if keyed else 403
            assert status_of(lambda: stranger.DeactivateNode(deactivate)) == refusal
        assert list(link.online_nodes()) == [online] and client_lines in ([], ["connected"])
        answer = exchange({0: Envelope({"kind": "train"}, {})}, {})[0]
        assert answer.header == {"client": 0, "kind": "train"}


def test_messages_of_a_stranger_are_not_read():
    """500 MB by Content-Length and by chunks, to a call of clients and to another, of a server that
    has no list of keys."""
    with listening(None) as (_, port, _):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in ("fleet/push-object", "control/start-run"):
            for declared in (True, False):
                assert sent_in_vain(port, f"/v1/{path}", declared) < 64 * MEGABYTE
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


HOSTILE = [
    (written(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"), "more than 32 levels"),
    (b"x" * 100, "not a message: a string of 2021161080 bytes"),
    (written(b'{"error": "lost\\nround 9: well\\u001b[2J"}'), r"lost round 9: well\x1b[2J"),
    (b"", "not a message: a string of 0 bytes"),  # last: the client tries it again
]


def test_answers_of_a_hostile_client_are_one_line(keys, monkeypatch):
    with listening(keys) as (link, port, _), attending(port, keys[0], client(0)):
        meet, exchange, *_ = flower_transport(link, 20.0, 2.0, print)
        meet(HELLO, 1)
        sent, leave = [], node.leave_reply
        monkeypatch.setattr(node, "leave_reply", lambda *args: leave(*args[:-1], sent[-1]))
        for reply, message in HOSTILE:
            sent.append(reply)
            error = exchange({0: Envelope({"kind": "evaluate"}, {})}, {})[0].header["error"]
            assert message in error and error.isprintable()


def test_an_answer_is_no_longer_than_its_form(keys):
    """A longer one that the gate still passes is refused where it is read."""
    lines, sizes = [], iter([400, 2000, 8 * MEGABYTE])

    def answer(message):
        if message.header["kind"] == "hello":
            return client(0)(message)
        return Envelope({"client": 0}, {"a": np.zeros(next(sizes), np.uint8)})

    with listening(keys) as (link, port, link_lines), attending(port, keys[0], answer):
        meet, exchange, *_ = flower_transport(link, 20.0, 3.0, lines.append)
        meet(HELLO, 1)
        train, most = {0: Envelope({"kind": "train"}, {})}, array_bytes("a", np.uint8, (400,))
        assert exchange(train, {0: most})[0].arrays["a"].size == 400
        error = exchange(train, {0: most})[0].header["error"]
        assert error == f"it has {most + 1600} bytes of arrays; at most {most} are allowed"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert exchange(train, {0: most}) == {}
        assert link_lines == ["client 0 sent more bytes than allowed; they were not read"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024


@contextlib.contextmanager
def beside_a_hostile_client(keys, timeout):
    """Runs client 0 and a node by hand, client 1; yields the latter and the exchange with both."""
    with listening(keys) as (link, port, lines), attending(port, keys[0], client(0)):
        meet, exchange, *_ = flower_transport(link, 20.0, timeout, lines.append)
        raw = RawNode(port, keys[1])
        thread = threading.Thread(target=raw.answer_hello, args=(1,))
        thread.start()
        assert sorted(meet(HELLO, 2)) == [0, 1]
        thread.join()

        def train(hostile):
            thread = threading.Thread(target=hostile)
            thread.start()
            begin = time.monotonic()
            replies = exchange(dict.fromkeys((0, 1), Envelope({"kind": "train"}, {})), {})
            seconds = time.monotonic() - begin
            thread.join()
            return replies, seconds

        yield raw, train


def test_a_reply_is_no_tree_and_its_sender_alone_is_refused(keys):
    statuses = []

    def answer_with_trees(raw):
        metadata = raw.await_message()
        for levels in (60, 12):
            tree = bomb(levels, reply_id_of(metadata.message_id))
            statuses.append(status_of(functools.partial(raw.announce, metadata, tree)))

    with beside_a_hostile_client(keys, 2.0) as (raw, train):
        replies, seconds = train(lambda: answer_with_trees(raw))
        assert statuses == [413, 403] and sorted(replies) == [0] and seconds < 4
        replies, seconds = train(lambda: answered(raw))  # and the next round is as any other
        assert sorted(replies) == [0, 1] and seconds < 2


def answered(raw):
    metadata = raw.await_message()
    assert raw.push(metadata, raw.announce(metadata), to_bytes(Envelope({"client": 1}, {})))


def test_neither_a_slow_upload_nor_a_server_that_slept_loses_a_reply(keys, monkeypatch):
    """Flower itself gives a reply three minutes, and ends a run without a heartbeat in one."""

    def answer_slowly(raw):
        metadata = raw.await_message()
        session, later = raw.announce(metadata), in_memory_corestate.now() + timedelta(minutes=9)
        monkeypatch.setattr(in_memory_corestate, "now", lambda: later)
        assert raw.push(metadata, session, to_bytes(Envelope({"client": 1}, {})))

    with beside_a_hostile_client(keys, 5.0) as (raw, train):
        assert sorted(train(lambda: answer_slowly(raw))[0]) == [0, 1]


def test_a_reply_that_is_announced_and_never_sent_blocks_nobody(keys):
    with beside_a_hostile_client(keys, 1.0) as (raw, train):
        replies, seconds = train(lambda: raw.announce(raw.await_message()))
        assert replies[0].header["client"] == 0 and 1 not in replies and seconds < 2
        replies, _ = train(lambda: answered(raw))
        assert sorted(replies) == [0, 1]


def test_a_node_that_connects_again_is_not_waited_for(keys):
    """It was killed with a request, and started again between two looks at who is online."""

    def begin_anew(raw):
        raw.await_message()
        raw.fleet.DeactivateNode(DeactivateNodeRequest(node_id=raw.node.node_id))
        RawNode(raw.port, keys[1])

    with beside_a_hostile_client(keys, 6.0) as (raw, train):
        replies, seconds = train(lambda: begin_anew(raw))
        assert sorted(replies) == [0] and seconds < 4
        assert sorted(train(lambda: answered(raw))[0]) == [0, 1]


def test_a_reply_outlives_a_connection_that_fails(keys, monkeypatch):
    """Nothing is trained twice, and the client does not connect again."""
    send, failures, kinds = node.Bounded.intercept, [], []

    def failing(bounded, context, call_next):
        if context.rpc_method.endswith("/PushMessages") and len(failures) < 3:
            failures.append(context)
            raise httpx.ConnectError("unreachable")
        return send(bounded, context, call_next)

    def answer(message):
        kinds.append(message.header["kind"])
        return client(0)(message)

    monkeypatch.setattr(node.Bounded, "intercept", failing)
    with listening(keys) as (link, port, _), attending(port, keys[0], answer) as lines:
        wait_until(link.online_nodes)
        (number,) = link.online_nodes()
        assert link.exchange({number: HELLO}, {}, 10.0)[number].header["client"] == 0
        assert kinds == ["hello"] and len(failures) == 3 and lines == []


def test_an_answer_that_comes_too_late_is_not_waited_for_and_its_client_stays(keys):
    slow = threading.Event()

    def answer(message):
        if message.header["kind"] == "slow":
            slow.wait(10)
        return client(0)(message)

    with listening(keys) as (link, port, _), attending(port, keys[0], answer) as lines:
        meet, exchange, *_ = flower_transport(link, 20.0, 0.5, print)
        meet(HELLO, 1)
        assert exchange({0: Envelope({"kind": "slow"}, {})}, {}) == {}
        slow.set()
        wait_until(lambda: exchange({0: Envelope({"kind": "train"}, {})}, {}))
        assert link.online_nodes() and lines == []
