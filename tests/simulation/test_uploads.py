"""Answers of a round, delivered to the server. Late uploads are those of test_waiting.py."""

import numpy as np

from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.clock import Devices, deliver_in_time
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.roster import PADDING
from fedjax_ht.simulation.serving import Answers, deliver
from fedjax_ht.simulation.state import SimulationState

# clients 1, 4 and 6; the last row is padding
IDS, ROWS = [1, 4, 6], [1, 2, 0, PADDING]
OF_ROWS = np.array([6, 1, 4, 0])
SENT = np.array([True, False, True, False])
BYTES = np.array([30, 10, 20, 99])


def answers(in_order: bool = False) -> Answers:
    cost = WireCost(BYTES // 4, BYTES, BYTES * 0, BYTES * 0)
    return Answers(
        ids=np.array(IDS),
        padded_rows=np.array(ROWS, np.int32),
        in_order=in_order,
        info=ClientInfo(OF_ROWS, OF_ROWS, OF_ROWS),
        results=ClientResult(OF_ROWS * 10.0, SENT, SENT, {}, cost, cost),
        scores={},
        score_rows=np.array(ROWS[:3]),
        idle=np.zeros(2),
    )


START = SimulationState(0, (), {}, np.full(7, -1), {})


def test_the_rows_of_participants_are_without_padding():
    np.testing.assert_array_equal(OF_ROWS[answers().rows], IDS)


def test_without_a_clock_uplinks_in_order_reach_the_server_as_they_are():
    (received, rows), left, waiting = deliver(client_mesh(1), START, {"a": answers(in_order=True)})
    np.testing.assert_array_equal(received["a"].uplink, OF_ROWS * 10.0)
    np.testing.assert_array_equal(received["a"].info.id, OF_ROWS)
    np.testing.assert_array_equal(received["a"].arrived, SENT)
    assert rows == {} and waiting is None
    assert left["a"].results.uplink == () and left["a"].seconds is left["a"].late is None


def test_on_cpu_the_others_come_by_client_id():
    """A place without a participant has not arrived."""
    part = answers()._replace(results=answers().results._replace(arrived=np.ones(4, bool)))
    (received, rows), _, _ = deliver(client_mesh(1), START, {"a": part})
    assert rows == {}
    np.testing.assert_array_equal(received["a"].info.id[:3], [1, 4, 6])
    np.testing.assert_array_equal(received["a"].uplink[:3], [10.0, 40.0, 60.0])
    np.testing.assert_array_equal(received["a"].arrived, [True, True, True, False])


def test_an_upload_after_the_deadline_does_not_arrive():
    """Client 4 takes 2 s, client 6 3 s; client 1 sends nothing, and padding takes no time."""
    profile = Profile(up=np.full(7, 10.0), deadline=2.0)
    devices = Devices(profile, lambda: np.zeros(7), client_mesh(1), {}, 7)
    (received, _), left, _ = deliver_in_time(devices, START, {"a": answers()})
    np.testing.assert_array_equal(left["a"].seconds, [3.0, 1.0, 2.0, 0.0])
    np.testing.assert_array_equal(left["a"].late, [True, False, False, False])
    np.testing.assert_array_equal(left["a"].results.arrived, [False, False, True, False])
    np.testing.assert_array_equal(received["a"].arrived, [False, True, False, False])  # by id
    np.testing.assert_array_equal(left["a"].results.finite, SENT)
