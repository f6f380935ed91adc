"""Uploads that arrive in a later round, told through the probe of probe.py."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.core.programs import influences, union
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.wire import WireCost
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.profile import Profile, by_chance
from fedjax_ht.simulation.program import Program, bind
from fedjax_ht.simulation.roster import PADDING
from fedjax_ht.simulation.selection import power_of_choice
from fedjax_ht.simulation.serving import Answers, deliver
from fedjax_ht.simulation.state import SimulationState
from tests import standard
from tests.federations import (
    NUM_CLIENTS,
    chosen,
    federation_data,
    federation_for,
    identical,
    to_host,
)
from tests.reference.devices import Device, Work, play_late
from tests.simulation.probe import FEDERATION, probe
from tests.simulation.test_clock import (
    DOWN,
    DOWNLINK,
    OPTIONS,
    SLOW,
    UP,
    UPLINK,
    assert_as_by_hand,
    rows_of,
    simulation,
    untimed,
    with_profile,
)
from tests.standard import method_of

# of whole models, rows, heads, slices, public sets, adapters, and those that redraw
SOME = ("fedavg", "fedproto", "fedtgp", "fedgh", "feddropout", "fedmd", "fedit", "fedktl")


def waiting(deadline: float, **fields) -> Profile:
    return Profile(**({"up": UP, "down": DOWN} | fields), deadline=deadline, late="arrives")


@pytest.mark.parametrize("deadline", [5.0, 8.0, 20.0, 1e3])
def test_rounds_last_as_by_hand(deadline):
    profile = waiting(deadline, available=by_chance(NUM_CLIENTS, 0.8))
    state, history = run(simulation(profile), 6)
    options = dataclasses.replace(OPTIONS, devices_profile=profile)

    def draw(round: int, unfinished: set[int]) -> list[Work]:
        free = options.reachable(NUM_CLIENTS, round)
        free[list(unfinished)] = False
        ids, lost = choose_participants(options, NUM_CLIENTS, round, free)
        assert not unfinished & set(ids.tolist())
        return [Work(i, 0.0, UPLINK, DOWNLINK[i], gone) for i, gone in zip(ids.tolist(), lost)]

    devices = [Device(up=up, down=down) for up, down in zip(UP.tolist(), DOWN.tolist())]
    expected = play_late(devices, draw, 6, deadline)
    assert_as_by_hand(state, history, expected)
    assert rows_of(history, "arrived_late") == [[row["arrived_late"]] for row in expected]
    assert any(row["arrived_late"] for row in expected) == (deadline < 1e3)


def test_an_upload_arrives_as_it_was_sent():
    """Client 4 sends in round 0, is on the way for 2.5 rounds, and is asked again then."""
    sim = simulation(waiting(10.0, up=SLOW, down=None))
    state, reports = sim.init(), []
    for ids in ([0, 4, 6], [0, 6], [], [4]):
        with chosen(ids):
            state, report = sim.run_round(state)
        reports.append((report.late, report.arrived_late, report.arrived, report.seconds))
    first, second, third, fourth = reports
    # 18 and then 8 seconds are left
    assert first == ((4,), (), 2, 10.0) and second == ((), (), 2, 10.0)
    assert third == ((), (4,), 1, 8.0) and fourth == ((4,), (), 0, 10.0)
    with chosen([0, 4, 6]):
        prompt, _ = simulation(None).run_round(simulation(None).init())
    for name in ("facts", "weights"):
        expected = getattr(prompt.server, name)[4]
        np.testing.assert_array_equal(getattr(state.server, name)[4], expected)
    assert state.server.heard[4] == 1
    assert state.waiting.unfinished.tolist() == [i == 4 for i in range(NUM_CLIENTS)]


def test_a_resumed_run_has_the_same_uploads_on_their_way(tmp_path):
    profile = waiting(8.0)
    whole, rows = run(simulation(profile), 4)
    for _ in range(2):  # the second time from the file
        sim = simulation(profile)
        checkpointer = Checkpointer(tmp_path / "checkpoints", sim)
        state, history = checkpointer.restore() or run(sim, 2)
        assert state.waiting.unfinished.any()
        checkpointer.save(state, history)
    state, history = run(sim, 4, state=state, history=history)
    assert untimed(history) == untimed(rows) and identical(to_host(state), to_host(whole))


def test_a_late_upload_reports_its_loss_when_it_arrives():
    up = np.where(np.arange(NUM_CLIENTS) == 0, 30.0, 1e9)  # bytes a second
    profile = Profile(up=up, deadline=1.0, late="arrives")
    sim = standard.simulation_of(
        "fedproto", participation=1.0, select=power_of_choice(1.0), devices_profile=profile
    )
    state, late = sim.init(), []
    while not late:
        before = state.waiting.losses[0]
        state, report = sim.run_round(state)
        late = list(report.arrived_late)
        assert np.isinf(state.reports.loss[0]) != bool(late)
    assert state.round > 2 and late == [0] and state.reports.loss[0] == before


@functools.cache
def failing() -> Program:
    """Binds the probe with a server that is not finite once it has heard client 4."""

    def server_update(federation, server, received, ctx):
        new, metrics = probe().server_update(federation, server, received, ctx)
        return new._replace(level=jnp.where(new.heard[4] > 0, jnp.nan, new.level)), metrics

    method = probe()._replace(server_update=server_update)
    return bind(method, FEDERATION, federation_data(FEDERATION), options=OPTIONS)


def test_a_fault_of_an_upload_that_comes_too_late_is_none():
    for deadline, stage in ((0.0, "server_update"), (2.0, None)):
        sim = with_profile(failing(), Profile(up=SLOW, deadline=deadline))
        with chosen([0, 4]):
            fault = sim.find_fault(sim.init())
        assert (fault and fault.stage) == stage


def test_a_fault_of_an_upload_shows_when_it_arrives():
    sim = with_profile(failing(), waiting(20.0, up=SLOW, down=None))
    state = sim.init()
    with chosen([0, 4]):
        assert sim.find_fault(state) is None
        state, _ = sim.run_round(state)
    with chosen([0]):
        assert sim.find_fault(state).stage == "server_update"


@pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n not in SOME)]
)
def test_methods_whose_server_repeats_its_draws_are_marked(name):
    """All other servers leave alone the key that they share with the clients of this round."""
    method, options = method_of(name), {"devices": 1, "devices_profile": waiting(8.0)}
    if method.wire.redrawn:
        message = f"late is 'arrives', but an upload of {name} is only valid"
        with pytest.raises(ValueError, match=message):
            standard.simulation_of(name, **options)
        return
    engine = standard.simulation_of(name, **options).program.engine
    # The forms are enough, and nothing is compiled.
    of_clients = ClientInfo(*[jax.ShapeDtypeStruct((3,), np.int32)] * 3)
    sent = {}
    for bucket, form in engine.uplink_forms().items():
        stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), form)
        sent[bucket] = stacked, of_clients
    key, weights = jax.random.key(0), all_weights(federation_for(name))
    server = jax.eval_shape(engine.first_server, np.uint32(0), (), weights)

    def serve(shared_key, server, sent, key, number, frozen):
        received = {name: Received(*fields, np.ones(3, bool)) for name, fields in sent.items()}
        ctx = Context(key, number, None, pretrained=frozen, shared_key=shared_key)
        return method.server_update(federation_for(name), server, received, ctx)[0]

    frozen = method.needs.pretrained.variables
    _, sources = influences(serve, key, server, sent, key, np.int32(0), frozen)
    assert 0 not in union(sources)


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
