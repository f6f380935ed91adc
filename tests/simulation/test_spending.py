"""Privacy budgets that rounds spend, and whole runs that are private."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_ht.core.wire import gaussian_noise
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.privacy_budget import BLOCK, epsilon_spent, participations
from fedjax_ht.trust.defences import median
from fedjax_ht.trust.epsilon import fixed_epsilon, gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.options import Privacy
from tests.federations import NUM_CLIENTS, TRAIN_COUNTS, TRAINING, to_host
from tests.simulation.test_clock import untimed
from tests.standard import simulation_of

pytest.importorskip("dp_accounting")
SAMPLES = TRAIN_COUNTS.sum(1)


def program(name: str, *privacy, **options):
    return simulation_of(name, privacy=Privacy(*privacy), **options).program


@pytest.mark.parametrize("rounds", [0, 3, BLOCK, 2 * BLOCK + 5])
def test_participations_are_those_of_the_rounds(rounds):
    for share in (1.0, 0.3):
        options = SimulationOptions(seed=4, participation=share)
        expected = np.zeros(NUM_CLIENTS, int)
        for round in range(rounds):
            expected[choose_participants(options, NUM_CLIENTS, round)[0]] += 1
        np.testing.assert_array_equal(participations(4, share, NUM_CLIENTS, rounds), expected)


def test_sums_and_uploads_cost_what_the_busiest_client_pays():
    cases = ("lg_fedavg", "client", 1.0), ("lg_fedavg", "client", 0.4), ("fedavg", "upload", 0.4)
    for name, unit, share in cases:
        bound = program(name, unit, 1.0, 2.0, 1e-4, participation=share)
        for rounds in (1, 7):
            most = participations(0, share, NUM_CLIENTS, rounds).max()
            assert epsilon_spent(bound, rounds) == gaussian_epsilon(2.0, most, 1e-4)
    assert most < 7


@pytest.mark.parametrize("exposure", ["alike", "apart"])
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_participants_whom_nobody_knows_are_hidden_by_the_draw(exposure, share):
    """A draw of few hides; of many it is accounted for with half the noise."""
    options = SimulationOptions(privacy=Privacy("client", 1.0, 8.0), participation=share)
    federation, method = SimpleNamespace(num_clients=400), SimpleNamespace(training=TRAINING)
    engine = SimpleNamespace(exposure=exposure)
    bound = SimpleNamespace(options=options, federation=federation, method=method, engine=engine)
    epsilon = epsilon_spent(bound, 200)
    known = gaussian_epsilon(8.0, participations(0, share, 400, 200).max(), 1e-5)
    drawn = fixed_epsilon(8.0, int(400 * share), 400, 200, 1e-5)
    assert (drawn < known) == (share == 0.01)
    assert epsilon == (drawn if exposure == "alike" and share == 0.01 else known)


def test_samples_cost_most_where_there_are_few():
    spent = epsilon_spent(program("fedavg", "sample", 1.0, 2.0, participation=0.5), 10)
    took_part, size = participations(0, 0.5, NUM_CLIENTS, 10), TRAINING.batch_size
    steps = took_part * np.maximum(SAMPLES // size, SAMPLES > 0)
    each = [
        poisson_epsilon(2.0, min(size, n), n, t, 1e-5) if n else 0 for n, t in zip(SAMPLES, steps)
    ]
    assert spent == pytest.approx(max(each)) and each[3] == 0 < np.median(each) < max(each)


def test_nothing_is_told_where_nothing_is_sent_and_everything_without_noise():
    assert epsilon_spent(program("local", "client"), 5) == 0.0
    assert epsilon_spent(program("local", "sample"), 5) == 0.0
    assert epsilon_spent(program("fedavg", "client", 1.0, 0.0), 5) == math.inf


@pytest.mark.parametrize(
    "field, value", [("uplink", (gaussian_noise(0.1, 0.1),)), ("robust", (median(),))]
)
def test_changes_of_single_uploads_are_refused_beside_noise_on_sums(field, value):
    with pytest.raises(ValueError, match=f"which only hides sums; {field} must then be empty"):
        SimulationOptions(privacy=Privacy("client"), **{field: value})
    SimulationOptions(privacy=Privacy("upload"), **{field: value})


def simulation(unit: str, seed: int = 0):
    privacy = Privacy(unit, 0.1, 1.0)
    return simulation_of("fedavg", privacy=privacy, seed=seed, lanes=1, participation=0.6)


@pytest.mark.parametrize(
    "unit",
    [
        "client",
        pytest.param("upload", marks=pytest.mark.slow),
        pytest.param("sample", marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_is_the_same_run_and_a_resumed_one_goes_on(unit):
    state, history = run(simulation(unit), 3)
    spent = [row.get("epsilon") for row in history]
    assert spent[0] is None and 0 < spent[1] < spent[3] and spent[1] <= spent[2] <= spent[3]
    halfway, first = run(simulation(unit), 1)
    resumed, rows = run(simulation(unit), 3, state=halfway, history=first)
    assert untimed(rows) == untimed(history)
    expected = to_host(state).server["base"]["fc1"]["kernel"]
    np.testing.assert_array_equal(to_host(resumed).server["base"]["fc1"]["kernel"], expected)
    other, _ = run(simulation(unit, seed=1), 1)
    biases = [to_host(x).server["head"]["bias"] for x in (other, state)]
    assert not np.allclose(*biases, atol=1e-3)
