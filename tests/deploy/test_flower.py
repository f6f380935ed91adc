"""A whole deployment: server and clients as processes on loopback, with TLS and keys."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.supercore.task_identity import TaskIdentity

from fedjax_ht.deploy.flower import flower_transport, from_records, to_records
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy.processes import (
    end_all,
    made_ready,
    present_spans,
    rows_of,
    start_client,
    start_server,
    trained_columns,
    wait_for,
)
from tests.deploy.sites import assert_same_rows, simulation_of, small_config


def test_records_carry_an_envelope():
    envelope = Envelope(
        {"kind": "train", "round": 3}, {"000.a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    )
    back = from_records(to_records(envelope))
    assert back.header == envelope.header and back.arrays["000.a"].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    with pytest.raises(ValueError, match="no message of this library"):
        from_records(to_records(envelope).__class__())


class InstantGrid:
    """Grid whose nodes answer at once; node 12 has an error the first time.

    Attributes:
      nodes: node id -> id of the client that it says it is.
      requests: (node id, kind) of all requests.
    """

    def __init__(self):
        self.nodes, self.owners, self.requests = {11: 0, 12: 1, 13: 1}, {}, []

    def expect(self, sizes):
        pass

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, timeout):
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(i)
            node = message.metadata.dst_node_id
            kind = from_records(message.content).header["kind"]
            self.requests.append((node, kind))
            content = to_records(Envelope({"client": self.nodes[node], "kind": kind}, {}))
            is_error = node == 12 and self.requests.count((12, "hello")) == 1
            yield FakeReply(str(i), content, is_error)


class FakeReply:
    """Reply of a node; Flower says of an error that it comes from the server's own node."""

    def __init__(self, message_id, content, is_error):
        self.metadata = SimpleNamespace(src_node_id=1, reply_to_message_id=message_id)
        self.content, self.is_error = content, is_error
        self.error = SimpleNamespace(reason="it has\nexpired", code=3)

    def has_error(self):
        return self.is_error


def test_nodes_are_greeted_once_and_a_client_has_one_node(monkeypatch):
    # Flower's `Message` takes its sender from these
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    lines, grid = [], InstantGrid()
    meet, exchange, _ = flower_transport(grid, 0.0, 1.0, lines.append)
    hello, train = Envelope({"kind": "hello"}, {}), Envelope({"kind": "train"}, {})
    assert sorted(meet(hello, 2)) == [0, 1]
    assert lines == ["node 12 does not answer: it has expired"]
    assert sorted(meet(hello, 0)) == [0, 1]
    assert [node for node, kind in grid.requests if kind == "hello"] == [11, 12, 13, 12]
    assert lines[1:] == ["node 12 (client 1) is left out: client 1 is connected already"]
    assert sorted(exchange({0: train, 7: train}, {})) == [0]
    del grid.nodes[11]
    assert sorted(meet(hello, 0)) == [1] and lines[-1] == "client 0 has disconnected"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto"])
def test_four_nodes_with_tls_and_keys_end_as_the_simulation(method, tmp_path):
    """One client is killed in round 2 and started again; the server is killed after it, and started
    again."""
    port = made_ready(tmp_path, method, rounds=4)
    server = start_server(tmp_path, port)
    clients = {i: start_client(tmp_path, port, i) for i in range(4)}
    try:
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 1)
        clients[2].kill()
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 2)
        server.send_signal(signal.SIGKILL)
        server.wait()
        clients[2] = start_client(tmp_path, port, 2)
        server = start_server(tmp_path, port)
        assert server.wait(600) == 0, (tmp_path / "server.log").read_text()
    finally:
        end_all(server, *clients.values())
    rows = rows_of(tmp_path)
    missed = [row["round"] - 1 for row in rows[1:] if row["arrived"] == 3]
    assert missed and len(rows) == 5, rows
    config = small_config(method, rounds=4)
    profile = Profile(available=by_trace(4, present_spans(4, 2, missed)))
    _, simulation = simulation_of(config, profile=profile)
    assert_same_rows(*trained_columns(run(simulation, 4)[1], rows))


@pytest.mark.slow
def test_four_nodes_by_secure_sums_end_as_the_simulation(tmp_path):
    """One client is killed after round 1: the sums of rounds 2 and 3 are the other three's."""
    port = made_ready(tmp_path, "fedproto", rounds=3)
    server = start_server(tmp_path, port, "--secure_sums")
    clients = {i: start_client(tmp_path, port, i, "--secure_sums") for i in range(4)}
    try:
        wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 1)
        clients[2].kill()
        assert server.wait(600) == 0, (tmp_path / "server.log").read_text()
    finally:
        end_all(server, *clients.values())
    rows = rows_of(tmp_path)
    profile = Profile(available=by_trace(4, present_spans(3, 2, [1, 2])))
    _, simulation = simulation_of(small_config("fedproto", rounds=3), profile=profile)
    for simulated, deployed in zip(run(simulation, 3)[1], rows, strict=True):
        assert simulated.get("arrived") == deployed.get("arrived")
        if "loss" in simulated:
            np.testing.assert_allclose(deployed["loss"], simulated["loss"], rtol=1e-4)
