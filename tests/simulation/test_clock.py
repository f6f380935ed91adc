"""The simulated clock, seen through the probe of probe.py, whose bytes are known in advance."""

import dataclasses
import functools

import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.profile import Profile, by_chance
from fedjax_ht.simulation.program import Program, bind
from fedjax_ht.simulation.simulation import Simulation, make_simulation, simulation_of
from tests.federations import NUM_CLIENTS, TRAINING, chosen, federation_data, identical, to_host
from tests.reference.devices import Device, Work, play
from tests.simulation.probe import FEDERATION, probe

RNG = np.random.default_rng(0)
FLOPS, UP, DOWN = (RNG.uniform(1, 4, NUM_CLIENTS) for _ in range(3))
UPLINK = 28  # two floats, and five that are metadata
# a level; client i gets i + 1 floats and their indices
DOWNLINK = 4 + 8 * (np.arange(NUM_CLIENTS) + 1)
# client 4 takes 28 seconds for an upload, the others one
SLOW = np.where(np.arange(NUM_CLIENTS) == 4, 1.0, 28.0)

SCORING = Scoring(batch_size=4)
OPTIONS = SimulationOptions(1, participation=0.6, drop_rate=0.2, devices=1, scoring=SCORING)
TIMING = ("seconds_round", "seconds_evaluation")


@functools.cache
def program(method: str = "") -> Program:
    """Binds the probe, or a real method, once: profiles are read on the host."""
    made = METHODS[method](TRAINING) if method else probe()
    return bind(made, FEDERATION, federation_data(FEDERATION), options=OPTIONS)


def with_profile(bound: Program, profile: Profile | None) -> Simulation:
    """Returns a simulation with this profile whose programs are compiled once for all profiles."""
    options = dataclasses.replace(bound.options, devices_profile=profile)
    return simulation_of(bound._replace(options=options))


def simulation(profile: Profile | None, method: str = "") -> Simulation:
    return with_profile(program(method), profile)


def untimed(history) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in history]


def rows_of(history, *names):
    return [[row[name] for name in names] for row in history if row["round"]]


def probe_rounds(rounds: int, profile: Profile) -> list[list[Work]]:
    """Lists the works of the probe's participants by round; the probe trains nothing."""
    works, options = [], dataclasses.replace(OPTIONS, devices_profile=profile)
    for round in range(rounds):
        ids, lost = choose_participants(options, NUM_CLIENTS, round)
        drawn = zip(ids.tolist(), lost)
        works.append([Work(i, 0.0, UPLINK, DOWNLINK[i], gone) for i, gone in drawn])
    return works


def assert_as_by_hand(state, history, expected: list[dict]) -> None:
    """Compares the rows and what the server has heard with the reference's rounds."""
    seconds = [[row["seconds"], row["clock"]] for row in expected]
    np.testing.assert_allclose(rows_of(history, "simulated_seconds", "simulated_clock"), seconds)
    arrived = [row["arrived"] for row in expected]
    assert rows_of(history, "late") == [[row["late"]] for row in expected]
    assert rows_of(history, "arrived") == [[len(x)] for x in arrived]
    assert rows_of(history, "uplink_payload_bytes") == [[8 * len(x)] for x in arrived]
    heard = np.bincount(np.concatenate(arrived).astype(int), minlength=NUM_CLIENTS)
    np.testing.assert_array_equal(state.server.heard, heard)


@pytest.mark.parametrize("rates", ["up down", "up", "down"])
@pytest.mark.parametrize("deadline", [0.0, 20.0, 0.5])
def test_rounds_last_as_by_hand(rates, deadline):
    rates = {name: {"up": UP, "down": DOWN}[name] for name in rates.split()}
    profile = Profile(by_chance(NUM_CLIENTS, 0.8), **rates, deadline=deadline)
    state, history = run(simulation(profile), 5)
    devices = []
    for i in range(NUM_CLIENTS):
        devices.append(Device(**{name: float(values[i]) for name, values in rates.items()}))
    expected = play(devices, probe_rounds(5, profile), deadline)
    assert_as_by_hand(state, history, expected)
    assert any(row["late"] for row in expected) == bool(deadline)
    assert "simulated_clock" not in history[0]


def test_training_takes_its_flops():
    profile = Profile(flops=FLOPS * 1e3, up=UP * 10, down=DOWN * 10)
    sim = simulation(profile, "fedproto")
    flops, (state, history) = sim.client_flops(), run(sim, 2)
    state = sim.init()
    for row in history[1:]:
        ids, lost = choose_participants(OPTIONS, NUM_CLIENTS, row["round"] - 1)
        assert row["flops"] == flops[ids].sum() > 0
        state, report = sim.run_round(state)
        finished = ids[~lost]
        assert report.seconds == row["simulated_seconds"] > (flops / FLOPS / 1e3)[finished].max()
    assert len(set(map(float, flops))) > 3
    only = simulation(Profile(flops=FLOPS * 1e3), "fedproto").run_round(sim.init())[1]
    ids, lost = choose_participants(OPTIONS, NUM_CLIENTS, 0)
    assert only.seconds == pytest.approx(max(flops[i] / FLOPS[i] / 1e3 for i in ids[~lost]))


def test_a_late_upload_is_lost_as_a_dropped_one_is():
    played = {}
    cases = ("late", Profile(up=SLOW, deadline=27.9), []), ("dropped", None, [4])
    for name, profile, dropped in cases:
        sim = simulation(profile)
        state = sim.init()
        for _ in range(2):
            with chosen([0, 4, 6], dropped):
                state, report = sim.run_round(state)
        played[name] = to_host(state), report
    (late, report), (dropped, other) = played["late"], played["dropped"]
    assert identical(late, dropped) and late.last_round[4] == 1
    assert report.late == (4,) and report.seconds == 27.9 and report.arrived == other.arrived == 2
    assert identical(report._replace(late=(), seconds=None, absent=None), other)
    with chosen([0, 4, 6]):
        _, report = simulation(Profile(up=SLOW, deadline=28.0)).run_round(sim.init())
    assert report.late == () and report.seconds == 28.0  # just in time


def test_nobody_takes_no_time():
    sim = simulation(Profile(lambda round: np.full(NUM_CLIENTS, round == 1), up=UP, deadline=1e-3))
    _, history = run(sim, 3)
    assert [row["late"] for row in history[1:]] == [[], rows_of(history, "late")[1][0], []]
    expected = [[0, 0], [1e-3, 1e-3], [0, 1e-3]]
    assert rows_of(history, "simulated_seconds", "simulated_clock") == expected
    _, given_up = run(sim, 3, give_up=1)  # where nobody takes part nothing is missed
    assert given_up[-1]["round"] == 2


def test_without_rates_there_is_no_clock():
    _, history = run(simulation(Profile(by_chance(NUM_CLIENTS, 0.5))), 1)
    assert "absent" in history[1]
    assert not {"simulated_seconds", "simulated_clock", "late"} & set(history[1])
    _, history = run(simulation(None), 1)
    assert not {"absent", "simulated_seconds", "simulated_clock", "late"} & set(history[1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"up": np.array([1.0, 0.0])}, "devices_profile.up must have one number above 0 for each"),
        (
            {"flops": np.array([np.inf])},
            "devices_profile.flops must have one number above 0 for each",
        ),
        ({"down": np.float64(3.0)}, "devices_profile.down must have one number above 0 for each"),
        ({"deadline": 3.0}, "devices_profile.deadline is 3.0, but nothing takes time; set flops"),
        ({"up": UP, "late": "arrives"}, "nothing is late without a deadline; set deadline"),
        ({"deadline": -1.0, "up": UP}, "devices_profile.deadline is -1.0; it must be a number of"),
    ],
)
def test_a_wrong_profile_is_one_line(fields, message):
    with pytest.raises(ValueError) as error:
        Profile(**fields)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_profile_of_other_clients_is_refused():
    options = SimulationOptions(devices_profile=Profile(up=np.ones(3)), devices=1)
    with pytest.raises(ValueError, match=r"^devices_profile.up has 3 numbers; there are 8"):
        make_simulation(probe(), FEDERATION, federation_data(FEDERATION), options)
