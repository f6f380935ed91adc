import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.methods.local import local
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.simulation import lanes as rule
from fedjax_ht.simulation.lanes import STEP, choose_lanes, fewest_seconds, simulation_lanes, typical
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import ASSIGNMENT, MODULES, NUM_CLASSES, SHAPE, TRAINING, federation_data

FEDERATION = make_federation(MODULES, SHAPE, NUM_CLASSES, assignment=ASSIGNMENT)
STEPS = [np.array([7, 5, 3, 3, 2]), np.array([4, 4, 1])]
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


def chosen(lanes=None, participants=8):
    recipes, mesh = [TRAINING] * 2, client_mesh(1)
    return choose_lanes(
        lanes, FEDERATION.buckets, STEPS, participants=participants, recipes=recipes, mesh=mesh
    )


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
    few = chosen(participants=4)
    assert list(few.values()) == [1, 1]  # 7, 3 and 2 steps, and 4 and 1: waiting costs more


def test_what_a_model_holds_while_it_trains_bounds_the_lanes(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    bucket = FEDERATION.buckets[0]

    def chosen(clients):
        monkeypatch.setattr(rule, "MEMORY", 2 * clients * 2 * training_memory(bucket, TRAINING))
        steps = [np.full(9, 5)]
        how = {"participants": 9, "recipes": [TRAINING], "mesh": client_mesh(1)}
        return choose_lanes(None, [bucket], steps, **how)[bucket.name]

    assert [chosen(clients) for clients in (0.5, 3.5, 20)] == [1, 3, 9]


def test_lanes_are_known_before_a_simulation_is_made(monkeypatch):
    monkeypatch.setattr(rule, "platform_of", lambda mesh: "gpu")
    data = federation_data(FEDERATION)
    counts = data.counts["train"]
    chosen = simulation_lanes(FEDERATION, counts, local(TRAINING), SimulationOptions(devices=1))
    assert min(chosen.values()) > 1
    for lanes in (None, chosen):
        options = SimulationOptions(lanes=lanes, devices=1)
        assert make_simulation(local(TRAINING), FEDERATION, data, options).lanes == chosen
