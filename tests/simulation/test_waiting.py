"""Uploads that arrive in a later round, told through the probe of probe.py."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.programs import influences, union
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.profile import Profile, by_chance
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    NUM_CLIENTS,
    TRAINING,
    chosen,
    federation_data,
    federation_for,
    identical,
    to_host,
)
from tests.method_wires import settings
from tests.reference.devices import Device, Work, play_late
from tests.simulation.test_clock import (
    DOWN,
    DOWNLINK,
    OPTIONS,
    SLOW,
    UP,
    UPLINK,
    assert_as_by_hand,
    failing,
    rows_of,
    simulation,
    untimed,
    with_profile,
)

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
    """Client 4 sends in round 0, is two rounds and a half on the way, and is asked again when it is
    done."""
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
    """Servers of all other methods do not use the key that they share with the clients of this
    round."""
    method, federation = METHODS[name](TRAINING, **settings(name)), federation_for(name)
    options = SimulationOptions(devices=1, devices_profile=waiting(8.0))
    if method.wire.redrawn:
        with pytest.raises(
            ValueError, match=f"late is 'arrives', but an upload of {name} means something"
        ):
            make_simulation(method, federation, federation_data(federation), options)
        return
    engine = make_simulation(
        method, federation, federation_data(federation), options
    ).program.engine
    # The forms are enough, and nothing is compiled.
    of_clients = ClientInfo(*[jax.ShapeDtypeStruct((3,), np.int32)] * 3)
    sent = {}
    for bucket, form in engine.uplink_forms().items():
        stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), form)
        sent[bucket] = stacked, of_clients
    key, weights = jax.random.key(0), all_weights(federation)
    server = jax.eval_shape(engine.first_server, np.uint32(0), (), weights)

    def serve(shared_key, server, sent, key, number, frozen):
        received = {
            b: Received(*fields, np.ones(len(fields[1].id), bool)) for b, fields in sent.items()
        }
        ctx = Context(key, number, None, pretrained=frozen, shared_key=shared_key)
        return method.server_update(federation, server, received, ctx)[0]

    _, sources = influences(
        serve, key, server, sent, key, np.int32(0), method.needs.pretrained.variables
    )
    assert 0 not in union(sources)
