import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.simulation.options import SimulationOptions, choose_participants


def test_edges_are_in_range():
    SimulationOptions(seed=0, participation=1, drop_rate=0, lanes=1)
    SimulationOptions(participation=1e-9, drop_rate=0.999, lanes=None, client_store="host")
    Scoring(state="trained", batch_size=1)


@pytest.mark.parametrize(
    ("participation", "num_clients", "participants"),
    [
        (1.0, 7, 7),
        (0.5, 5, 3),
        (0.25, 10, 3),
        (0.5, 7, 4),
        (0.24, 10, 2),
        (0.26, 10, 3),
        (0.01, 10, 1),
        (1e-9, 3, 1),
    ],
)
def test_participants_round_halves_up(participation, num_clients, participants):
    options = SimulationOptions(participation=participation)
    assert options.participants(num_clients) == participants
    for round in range(5):
        ids, dropped = choose_participants(options, num_clients, round)
        assert len(ids) == len(dropped) == len(set(ids)) == participants
        assert set(ids) <= set(range(num_clients)) and not dropped.any()
        np.testing.assert_array_equal(ids, np.sort(ids))


@pytest.mark.parametrize(("rate", "lost"), [(0.0, 0), (0.19, 0), (0.2, 1), (0.5, 2), (0.99, 4)])
def test_drop_outs_are_rounded_down(rate, lost):
    options = SimulationOptions(participation=0.5, drop_rate=rate)
    whole = SimulationOptions(participation=0.5)
    for round in range(5):
        ids, dropped = choose_participants(options, 10, round)
        assert dropped.dtype == bool and dropped.sum() == lost
        # nobody else is drawn
        np.testing.assert_array_equal(ids, choose_participants(whole, 10, round)[0])


def test_choice_is_a_function_of_seed_and_round():
    def draws(seed):
        options = SimulationOptions(seed=seed, participation=0.3, drop_rate=0.4)
        return [tuple(map(tuple, choose_participants(options, 20, round))) for round in range(20)]

    assert draws(3) == draws(3)
    assert len(set(draws(3))) == 20
    assert not set(draws(3)) & set(draws(4))


def test_choice_is_uniform():
    """Each of 10 clients takes part in 3 of 10 rounds and is dropped in 1 of 10, within five
    standard deviations."""
    options, rounds = SimulationOptions(participation=0.3, drop_rate=0.34), 3000
    taken, lost = np.zeros(10), np.zeros(10)
    together = np.zeros((10, 10))
    for round in range(rounds):
        ids, dropped = choose_participants(options, 10, round)
        taken[ids] += 1
        lost[ids[dropped]] += 1
        together[np.ix_(ids, ids)] += 1
    for counts, share in (
        (taken, 0.3),
        (lost, 0.1),
        (together[~np.eye(10, dtype=bool)], 3 / 10 * 2 / 9),
    ):
        assert np.abs(counts - share * rounds).max() < 5 * np.sqrt(rounds * share * (1 - share))
