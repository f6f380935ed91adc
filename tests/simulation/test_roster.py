"""A roster places clients on devices and orders them."""

from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.simulation import lanes as rule
from fedjax_ht.simulation.lanes import STEP, fewest_seconds, simulation_lanes, typical
from fedjax_ht.simulation.roster import (
    PADDING,
    Roster,
    clients_of,
    deal,
    idle_lane_steps,
    lay_out,
    make_roster,
    padded,
    schedule,
)
from tests.federations import TRAINING, federation_data, mixed_federation, uniform_federation

MEMBERS = np.array([1, 4, 6, 7, 9, 12])
STEPS = np.array([5, 9, 1, 2, 0, 7])


def roster(devices=2, lanes=1, capacity=3) -> Roster:
    """Deals clients as `make_roster` does on two devices, which a single device cannot show."""
    device = np.array([1, 0, 1, 0, 0, 1]) if devices == 2 else np.zeros(6, int)
    slot = np.array([0, 0, 1, 1, 2, 2]) if devices == 2 else np.arange(6)
    ids, local = (MEMBERS, STEPS, device, slot), np.arange(6)
    return Roster(*ids, local, devices, 6 // devices, capacity, lanes, most=4)


def test_one_device_holds_everybody_in_order():
    (device,) = deal([STEPS], 1)
    made = make_roster(MEMBERS, STEPS, device, participants=3, lanes=2, mesh=client_mesh(1))
    np.testing.assert_array_equal(made.device, 0)
    np.testing.assert_array_equal(made.slot, np.arange(6))
    np.testing.assert_array_equal(made.local, np.arange(6))
    assert (made.devices, made.shard, made.capacity, made.lanes) == (1, 6, 4, 2)
    assert made.most == 3


@pytest.mark.parametrize("devices", [2, 7])
def test_every_device_gets_about_the_same_steps(devices):
    """Device 1 is of this process."""
    steps = np.random.default_rng(0).integers(1, 500, 60)
    (device,) = deal([steps], devices)
    places = [SimpleNamespace(process_index=int(i != 1)) for i in range(devices)]
    mesh = SimpleNamespace(size=devices, devices=np.array(places))
    made = make_roster(np.arange(60), steps, device, participants=60, lanes=1, mesh=mesh)
    loads = np.array([steps[made.device == d].sum() for d in range(devices)])
    assert loads.max() < 1.05 * loads.mean()
    places = set(zip(made.device.tolist(), made.slot.tolist()))
    assert len(places) == 60 and max(made.slot) + 1 == made.shard == made.capacity
    np.testing.assert_array_equal(made.local, np.flatnonzero(made.device == 1))


def test_dealing_is_the_dearest_row_to_the_idlest_device():
    dear, cheap, nothing = deal([np.array([3.0, 9.0]), np.array([5.0, 4.0, 2.0]), np.zeros(2)], 2)
    # 9 | 5 + 4: of equals the one with fewer rows takes 3
    np.testing.assert_array_equal(dear, [0, 0])
    np.testing.assert_array_equal(cheap, [1, 1, 1])  # 9 + 3 | 5 + 4 + 2
    np.testing.assert_array_equal(nothing, [1, 1])


def test_rows_and_clients_belong_together():
    np.testing.assert_array_equal(roster().rows(np.array([0, 1, 9, 6])), [0, 2, 4])
    np.testing.assert_array_equal(MEMBERS[roster().rows(MEMBERS)], MEMBERS)


def test_layout_is_longest_first_where_several_run_side_by_side():
    rows = np.array([0, 1, 2, 5])
    expected = [1, PADDING, PADDING, 0, 2, 5]
    np.testing.assert_array_equal(lay_out(roster(), rows, 3), [expected])
    expected = [1, PADDING, PADDING, 5, 0, 2]
    np.testing.assert_array_equal(lay_out(roster(lanes=2), rows, 3), [expected])
    parts = lay_out(roster(lanes=2), np.arange(6), 2)
    np.testing.assert_array_equal(parts, [[1, 3, 5, 0], [4, PADDING, 2, PADDING]])
    nobody = lay_out(roster(), np.arange(0), 3)
    np.testing.assert_array_equal(nobody, [[PADDING] * 6])


def test_schedule_tells_each_row_its_own():
    info = fl.ClientInfo(*(np.arange(13) + k for k in (0, 100, 200)))
    flat = np.array([1, PADDING, 5, 0])
    plan = schedule(roster(), flat, np.array([7, 8, 9, 5]), info, lost=np.array([5]))
    np.testing.assert_array_equal(plan.slots[:, 0], [7, np.iinfo(np.int32).max, 9, 5])
    np.testing.assert_array_equal(plan.count, [1, 2])
    np.testing.assert_array_equal(plan.arguments.valid, [True, False, True, True])
    np.testing.assert_array_equal(plan.arguments.dropped, [False, False, True, False])
    real = [0, 2, 3]  # clients 4, 12 and 1
    np.testing.assert_array_equal(plan.arguments.member[real], [1, 5, 0])
    np.testing.assert_array_equal(plan.arguments.info.id[real], [4, 12, 1])
    np.testing.assert_array_equal(plan.arguments.info.num_samples[real], [104, 112, 101])


def test_results_go_back_to_their_clients():
    flat = np.array([1, PADDING, 5, 0])
    ids, where = clients_of(roster(), flat)
    np.testing.assert_array_equal(ids, [1, 4, 12])
    np.testing.assert_array_equal(np.array([10, 99, 50, 0])[where], [0, 10, 50])
    np.testing.assert_array_equal(padded(where, 4), [3, 0, 2, PADDING])


def test_idle_lane_steps():
    made = roster(lanes=2)
    (layout,) = lay_out(made, np.arange(6), 4)
    # device 0 runs 9 beside 2 and then 0; device 1 runs 7 beside 5, and then 1 alone
    np.testing.assert_array_equal(idle_lane_steps(made, layout), [7 + 2 + 1, 18 + 14 + 2])
    (nobody,) = lay_out(made, np.arange(0), 4)
    np.testing.assert_array_equal(idle_lane_steps(made, nobody), [0, 0])
    alone = roster()  # with one lane nobody waits
    assert idle_lane_steps(alone, lay_out(alone, np.arange(6), 3)[0])[0] == 0


FEDERATION = mixed_federation()
LANE_STEPS = [np.array([7, 5, 3, 3, 2]), np.array([4, 4, 1])]
MANY = 1000  # lanes that a device has room for


def seconds(steps, lanes):
    """Computes the seconds of a round by explicit loops over chunks and steps; between two numbers
    of lanes that were measured it is on the line between them."""
    below = max(n for n in STEP if n <= lanes)
    above = min(n for n in STEP if n >= lanes)
    share = (lanes - below) / max(above - below, 1)
    of_a_step = (1 - share) * STEP[below] + share * STEP[above]
    total = 0.0
    for start in range(0, len(steps), lanes):
        for _ in range(steps[start]):
            total += of_a_step
    return total


@pytest.mark.parametrize("seed", range(3))
def test_no_other_number_is_sooner_done(seed):
    steps = -np.sort(-np.random.default_rng(seed).geometric(0.02, 40))
    times = {n: seconds(steps, n) for n in range(1, max(STEP) + 1)}
    assert times[fewest_seconds(steps, MANY)] == pytest.approx(min(times.values()))


@pytest.mark.parametrize(
    "steps, room, lanes",
    [
        (np.full(20, 9), MANY, 20),
        (np.full(64, 9), MANY, max(STEP)),
        (np.array([1000, *[10] * 7]), MANY, 1),  # nobody waits for a client of many steps
        (np.full(20, 9), 4, 4),
        (np.full(20, 9), 0, 1),
    ],
)
def test_equal_clients_run_side_by_side_as_far_as_memory_goes(steps, room, lanes):
    assert fewest_seconds(steps, room) == lanes


def test_typical_steps_span_all():
    np.testing.assert_array_equal(typical(np.array([1, 9, 5, 3, 7]), 3), [9, 5, 1])
    np.testing.assert_array_equal(typical(np.array([1, 9]), 5), [9, 1])


def chosen(lanes=None, participation=1.0, federation=FEDERATION, steps=LANE_STEPS):
    counts = np.zeros(federation.num_clients, int)
    for bucket, of_bucket in zip(federation.buckets, steps):
        counts[list(federation.members(bucket))] = TRAINING.batch_size * of_bucket
    options = fl.SimulationOptions(participation=participation, lanes=lanes, devices=1)
    return simulation_lanes(federation, counts, fl.local(TRAINING), options)


def test_one_at_a_time_on_cpu_or_what_was_asked_for():
    names = [b.name for b in FEDERATION.buckets]
    assert chosen() == dict.fromkeys(names, 1) and chosen(3) == dict.fromkeys(names, 3)
    asked = {name: i + 2 for i, name in enumerate(names)}
    assert chosen(asked) == asked
    with pytest.raises(ValueError, match=f"lanes has no number for {names[1]}"):
        chosen({names[0]: 2})


def test_on_an_accelerator_the_rule_decides(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    assert list(chosen().values()) == [2, 2]
    few = chosen(participation=0.5)
    assert list(few.values()) == [1, 1]  # 7, 3 and 2 steps, and 4 and 1: waiting costs more


def test_what_a_model_holds_while_it_trains_bounds_the_lanes(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    federation = uniform_federation()
    (bucket,), steps = federation.buckets, [np.full(federation.num_clients, 5)]

    def bounded(clients):
        monkeypatch.setattr(rule, "MEMORY", 2 * clients * 2 * training_memory(bucket, TRAINING))
        return chosen(federation=federation, steps=steps)[bucket.name]

    assert [bounded(clients) for clients in (0.5, 3.5, 20)] == [1, 2, 8]


def test_lanes_are_known_before_a_simulation_is_made(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    data = federation_data(FEDERATION)
    counts = data.counts["train"]
    method, options = fl.local(TRAINING), fl.SimulationOptions(devices=1)
    chosen = simulation_lanes(FEDERATION, counts, method, options)
    assert min(chosen.values()) > 1
    for lanes in (None, chosen):
        options = fl.SimulationOptions(lanes=lanes, devices=1)
        assert fl.make_simulation(method, FEDERATION, data, options).lanes == chosen
