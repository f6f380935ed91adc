"""A device profile decides which clients can be reached in a round."""

import numpy as np
import pytest

from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.profile import Profile, by_chance, by_trace
from tests.federations import NUM_CLIENTS, changed, identical, to_host
from tests.simulation.probe import FEDERATION, simulation

TRACE = by_trace(NUM_CLIENTS, [(0, 0, 0), (0, 2, 9), (4, 0, 2), (5, 2, 2)])  # nobody in round 1
EVER = [[0, 4], [4], [0, 4, 5], [0]]


def rounds_of(options: SimulationOptions, rounds: int) -> list[list[int]]:
    return [choose_participants(options, NUM_CLIENTS, round)[0].tolist() for round in range(rounds)]


def test_a_trace_says_who_is_there():
    assert [np.flatnonzero(TRACE(round)).tolist() for round in range(4)] == EVER
    assert not TRACE(10).any() and TRACE(3).dtype == bool


@pytest.mark.parametrize("span", [(8, 0, 1), (-1, 0, 1), (0, 3, 2), (0, -1, 2)])
def test_a_wrong_span_is_one_line(span):
    client, first, last = span
    message = f"^client {client} is available from round {first} to {last}; "
    with pytest.raises(ValueError, match=message):
        by_trace(NUM_CLIENTS, [(0, 0, 5), span])


def test_spans_without_an_end_and_shares_above_one_are_refused():
    for span in ((0, 1), (0.5, 0, 1)):
        with pytest.raises(ValueError, match=r"a span is .* it must be \(client, first round"):
            by_trace(NUM_CLIENTS, [(0, 0, 1), span])
    with pytest.raises(ValueError, match="share is 80"):
        by_chance(NUM_CLIENTS, 80)


def test_chance_is_a_function_of_seed_and_round_and_comes_near_its_share():
    draws = {}
    for seed in (0, 1):
        draws[seed] = np.array([by_chance(500, 0.8, seed)(round) for round in range(20)])
    np.testing.assert_array_equal(draws[0][7], by_chance(500, 0.8)(7))
    assert abs(draws[0].mean() - 0.8) < 5 * np.sqrt(0.8 * 0.2 / draws[0].size)
    assert not np.array_equal(draws[0], draws[1]) and not np.array_equal(draws[0][0], draws[0][1])
    assert by_chance(500, 1.0)(0).all()


def test_the_bytes_of_a_large_upload_take_their_time():
    """Payload and metadata are uint32 on the device; their sum need not be."""
    cost, nothing = WireCost(*np.full((4, 1), 3_000_000_000, np.uint32)), np.zeros(1)
    profile = Profile(up=np.array([1e9]))
    assert profile.seconds(np.array([0]), nothing, down=cost, up=cost) == 6


def test_participants_are_drawn_among_those_who_are_there():
    profile = Profile(available=TRACE)
    # fewer than asked: all of them
    assert rounds_of(SimulationOptions(devices_profile=profile), 4) == EVER
    for seed in range(20):
        few = SimulationOptions(seed, 0.25, 0.5, devices_profile=profile)
        ids, lost = choose_participants(few, NUM_CLIENTS, 2)
        assert len(ids) == 2 and set(ids) < {0, 4, 5} and lost.sum() == 1
    # of 3
    dropping = SimulationOptions(drop_rate=0.7, devices_profile=profile)
    assert choose_participants(dropping, NUM_CLIENTS, 2)[1].sum() == 2
    nobody = Profile(available=lambda round: np.zeros(8, bool))
    assert rounds_of(SimulationOptions(devices_profile=nobody), 2) == [[], []]
    for options in ({"participation": 0.4, "drop_rate": 0.4}, {}):  # everybody there: as without
        everybody = Profile(available=by_chance(NUM_CLIENTS, 1.0))
        all_there = SimulationOptions(devices_profile=everybody, **options)
        assert rounds_of(all_there, 5) == rounds_of(SimulationOptions(**options), 5)


@pytest.mark.parametrize("answer", [np.ones(3, bool), np.ones(NUM_CLIENTS), True])
def test_another_answer_than_a_bool_a_client_is_one_line(answer):
    with pytest.raises(ValueError, match=r"^devices_profile.available gives .* for round 0; it"):
        Profile(available=lambda round: answer).reachable(NUM_CLIENTS, 0)


def test_an_absent_client_is_left_alone():
    sim = simulation(devices=1, participation=0.25, devices_profile=Profile(available=TRACE))
    state = sim.init()
    for number, reachable in enumerate(EVER):
        before = to_host(state)
        state, report = sim.run_round(state)
        took_part = report.participants.tolist()
        reached = np.flatnonzero(state.last_round == number).tolist()
        assert report.absent == NUM_CLIENTS - len(reachable)
        assert len(took_part) == report.arrived == min(2, len(reachable))
        assert changed(FEDERATION, before, to_host(state)) == set(took_part) <= set(reachable)
        assert reached == took_part
        # Client i is sent i + 1 entries, and a level.
        assert report.downlink.payload_elements == sum(i + 2 for i in reached)


def test_a_round_without_anybody_changes_only_its_number():
    def gone(round):
        return np.full(NUM_CLIENTS, round != 1)

    for store in ("device", "host"):
        sim = simulation(devices=1, client_store=store, devices_profile=Profile(available=gone))
        state, _ = sim.run_round(sim.init())
        before = to_host(state)
        assert store == "host" or sim.find_fault(state) is None
        state, report = sim.run_round(state)
        assert state.round == 2 and identical(to_host(state)._replace(round=1), before)
        assert report.arrived == 0 and report.absent == NUM_CLIENTS and not len(report.participants)
        assert report.metrics == {} and not any((*report.uplink, *report.downlink))
        _, report = sim.run_round(state)
        assert report.arrived == NUM_CLIENTS and report.absent == 0
