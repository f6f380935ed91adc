"""Several runs, round by round, on scripts: nothing is compiled."""

import numpy as np
import pytest

from fedjax_ht.simulation.history import best, merged
from fedjax_ht.simulation.runs import Ending, run_each
from tests.simulation.test_history import scripted

SCRIPTS = [0.1, 0.5, 0.4, 0.3, 0.9], [0.1, 0.2, 0.3, 0.1, 0.1]


def played(rounds, states=(None, None), histories=((), ()), *, patience=None, **options):
    return run_each(
        [scripted(script) for script in SCRIPTS],
        rounds,
        states,
        histories=histories,
        ending=Ending(patience),
        **{"after_round": lambda states, histories: False} | options,
    )


def untimed(rows):
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows]


def test_runs_have_rows_of_their_own_and_all_must_be_out_of_patience():
    seen = []
    states, histories = played(4, patience=1, progress_fn=seen.append)
    assert [state.round for state in states] == [3, 3]  # the second has its best in round 2
    assert merged(histories) == seen and [row["trial"] for row in seen] == [0, 1] * 4
    assert [[row for row in seen if row["trial"] == trial] for trial in (0, 1)] == histories
    assert [row.get("flops") for row in histories[1]] == [None, 10, 10, 10]
    assert [best(rows).on_test["round"] for rows in histories] == [1, 2]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_that_is_behind_goes_on_first(ahead):
    """A process may be killed while it saves the runs, one after another."""
    whole = merged(played(4)[1])
    after = {rounds: played(rounds) for rounds in (2, 3)}
    at = [3 if number == ahead else 2 for number in (0, 1)]
    states = [after[rounds][0][number] for number, rounds in enumerate(at)]
    histories = [after[rounds][1][number] for number, rounds in enumerate(at)]
    seen = []

    def after_round(states, histories):
        seen.append([state.round for state in states])
        return False

    _, resumed = played(4, states, histories, after_round=after_round)
    assert untimed(merged(resumed)) == untimed(whole) and seen == [[3, 3], [4, 4]]


def test_runs_have_the_numbers_that_are_given():
    _, histories = played(1, numbers=[0, 0], only=np.array([2]))
    assert [row["trial"] for rows in histories for row in rows] == [0] * 4
