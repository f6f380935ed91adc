"""A whole deployment: server and clients as processes on loopback, with TLS and keys."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedjax_ht.deploy.flower import HELLO_SECONDS, flower_transport
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy import processes
from tests.deploy.sites import simulation_of, small_config


class InstantLink:
    """Link whose nodes answer at once, with their ids; node 12 cannot be read the first time."""

    def __init__(self):
        self.nodes, self.owners, self.requests = {11: 0, 12: 1, 13: 1}, {}, []
        self.since = dict.fromkeys(self.nodes, "9:00")

    def online_nodes(self):
        return {node: self.since[node] for node in self.nodes}

    def exchange(self, requests, max_bytes, timeout):
        replies = {}
        for node, request in requests.items():
            kind = request.header["kind"]
            self.requests.append((node, kind))
            replies[node] = Envelope({"client": self.nodes[node], "kind": kind}, {})
            if node == 12 and self.requests.count((12, "hello")) == 1:
                replies[node] = "no message: it was cut short"
        return replies


def test_nodes_are_greeted_once_and_a_client_has_one_node():
    lines, link = [], InstantLink()
    meet, exchange, *_ = flower_transport(link, 0.0, 1.0, lines.append)
    hello, train = Envelope({"kind": "hello"}, {}), Envelope({"kind": "train"}, {})
    assert sorted(meet(hello, 2)) == [0, 1]
    assert lines == ["node 12 does not answer: no message: it was cut short"]
    assert sorted(meet(hello, 0)) == [0, 1]
    assert [node for node, kind in link.requests if kind == "hello"] == [11, 12, 13, 12]
    assert lines[1:] == ["node 12 (client 1) is left out: client 1 is already connected"]
    assert sorted(exchange({0: train, 7: train}, {})) == [0]
    del link.nodes[11]
    assert sorted(meet(hello, 0)) == [1] and lines[2] == "client 0 has disconnected"
    assert lines[3:] == lines[1:2]  # whoever was refused is asked again, once
    del link.nodes[13]  # that of client 1's process before the last
    assert sorted(meet(hello, 0)) == [1] and lines[-1] == "client 1 has disconnected"
    asked, link.since[12] = len(link.requests), "9:01"  # started again between two rounds
    assert sorted(meet(hello, 0)) == [1] and link.requests[asked:] == [(12, "hello")]


def test_a_node_that_never_says_who_it_is_delays_one_round_and_no_more():
    lines, timeouts, link = [], [], InstantLink()
    answered = link.exchange

    def exchange(requests, max_bytes, timeout):
        timeouts.append((sorted(requests), timeout))
        return answered({node: x for node, x in requests.items() if node != 13}, {}, timeout)

    link.exchange, link.owners = exchange, {13: 2}
    meet, *_ = flower_transport(link, 0.0, 600.0, lines.append)
    for _ in range(4):
        assert sorted(meet(Envelope({"kind": "hello"}, {}), 0)) in ([0], [0, 1])
    assert timeouts == [([11, 12, 13], HELLO_SECONDS), ([12], HELLO_SECONDS)]
    assert lines.count("client 2 does not answer: it did not identify itself") == 1


@pytest.mark.slow
def test_four_nodes_by_secure_sums_end_as_the_simulation(tmp_path):
    """One client is killed after round 1: the sums of rounds 2 and 3 are the other three's."""
    port = processes.made_ready(tmp_path, "fedproto", rounds=3)
    server = processes.start_server(tmp_path, port, "--secure_sums")
    clients = {i: processes.start_client(tmp_path, port, i, "--secure_sums") for i in range(4)}
    try:
        processes.wait_for(tmp_path, server, lambda rows: rows[-1]["round"] == 1)
        clients[2].kill()
        assert server.wait(600) == 0, (tmp_path / "server.log").read_text()
    finally:
        processes.end_all(server, *clients.values())
    rows = processes.rows_of(tmp_path)
    spans = [(client, 0, 2 if client != 2 else 0) for client in range(4)]
    profile = Profile(available=by_trace(4, spans))
    _, simulation = simulation_of(small_config("fedproto", rounds=3), devices_profile=profile)
    for simulated, deployed in zip(run(simulation, 3)[1], rows, strict=True):
        assert simulated.get("arrived") == deployed.get("arrived")
        if "loss" in simulated:
            np.testing.assert_allclose(deployed["loss"], simulated["loss"], rtol=1e-4)
