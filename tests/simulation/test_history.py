"""The loop over rounds: when it evaluates, when it stops, what it calls best."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.history import best, merged, run
from fedjax_ht.simulation.report import Evaluation, RoundReport
from fedjax_ht.simulation.rows import evaluated, evaluation_row, round_row
from fedjax_ht.simulation.runs import Ending, run_each, silent
from fedjax_ht.simulation.simulation import Rounds, SimulationState
from fedjax_ht.simulation.state import copy_state
from tests.federations import identical, to_host
from tests.simulation.test_clock import untimed
from tests.standard import simulation_of

COST = WireCost(1, 4, 0, 0)
REPORT = RoundReport(np.arange(2), 2, (), {}, {}, np.zeros(2), {}, COST, COST, 0.0, True, ())


def scripted(script, silent_in=()):
    """A simulation whose only client scores by the script; nothing arrives in `silent_in`."""

    def evaluate(state, only=None):
        clients = np.arange(3) if only is None else only
        count = {"test": np.isin(np.arange(3), clients) * 4, "train": np.full(3, 2)}
        scores = np.where(count["test"] > 0, script[state.round], np.nan)
        return Evaluation({"test": {"head": scores}}, count, {})

    def run_round(state, score=True):
        report = REPORT._replace(
            participants=np.array([0]),
            arrived=int(state.round + 1 not in silent_in),
            accuracy={"head": np.array([0.7])},
            metrics={"loss": 1.0},
            losses=np.zeros(1),
            wasted_lane_steps=0.25,
            far_off=((2, 1e9),),
        )
        return state._replace(round=state.round + 1), report

    start = SimulationState(0, (), {}, np.array([-1]), {})
    return Rounds(
        init=lambda: start,
        run_round=run_round,
        evaluate=evaluate,
        client_flops=lambda: np.array([10.0, 0, 0]),
        rules=("head",),
    )


def test_it_evaluates_the_start_every_k_rounds_and_the_end():
    _, history = run(scripted(np.linspace(0, 1, 9)), rounds=5, eval_every=2)
    assert [row["round"] for row in history] == [0, 1, 2, 3, 4, 5]
    assert [row["round"] for row in evaluated(history)] == [0, 2, 4, 5]
    assert history[3]["uplink_payload_bytes"] == 4
    # of every round
    assert [row.get("accuracy_participants") for row in history] == [None, *[0.7] * 5]


def test_it_stops_after_patience_evaluations_without_a_new_best():
    _, history = run(scripted([0.1, 0.5, 0.4, 0.5, 0.4, 0.9]), rounds=5, patience=3)
    assert history[-1]["round"] == 4
    assert best(history).on_test["round"] == 1
    assert best(history).last["round"] == 4


@pytest.mark.parametrize("silent_in, last", [((1, 3, 4), 4), ((2, 4), 6), ((5, 6), 6), ((1, 2), 2)])
def test_it_gives_up_after_rounds_in_which_nothing_arrived(silent_in, last):
    _, history = run(scripted(np.zeros(9), silent_in=silent_in), rounds=6, give_up=2)
    assert history[-1]["round"] == last and history[1]["far_off"] == [[2, 1e9]]
    assert history[1]["server_finite"]
    _, history = run(scripted(np.zeros(9), silent_in=silent_in), rounds=6)
    assert history[-1]["round"] == 6


def test_rounds_in_which_late_uploads_arrive_are_not_silent():
    rows = [{"participants": 6, "arrived": 0}, {"participants": 0, "arrived": 6}] * 3
    assert not silent(rows, 3) and silent(rows[::2], 3)
    waiting = [{"participants": 1, "arrived": 0, "late": [2], "arrived_late": []}] * 3
    assert not silent(waiting, 3)
    lost = [{"participants": 1, "arrived": 0, "late": [2]}] * 3  # late uploads are dropped
    assert silent(lost, 3)


def test_evaluations_without_a_validation_score_do_not_end_patience():
    rows = [{"accuracy": 0.5}] + [{"accuracy": 0.5, "val_accuracy": x} for x in (0.3, 0.2)]
    assert Ending(patience=1).reason(rows) == "patience"
    assert Ending(patience=2).reason(rows) is None


def test_columns_of_new_clients_without_test_samples_are_absent():
    def scored(accuracy, samples):
        counts = {"train": np.array([6, 6]), "test": np.array([samples, 0])}
        return Evaluation({"test": {"head": np.array([accuracy, np.nan])}}, counts, {})

    row = evaluation_row(scored(0.5, 4)._replace(new=scored(np.nan, 0)), ("head",))
    assert row["accuracy"] == 0.5 and not {"new_accuracy", "new_accuracy_std"} & set(row)


def test_participants_are_scored_by_every_rule():
    accuracy = {"prototype": np.array([0.5, np.nan, 1.0]), "head": np.array([0.2, np.nan, 0.4])}
    report = REPORT._replace(participants=np.arange(3), accuracy=accuracy)
    row = round_row(report, ("prototype", "head"), np.ones(3))
    assert row["accuracy_participants"] == row["accuracy_participants_prototype"] == 0.75
    assert row["accuracy_participants_head"] == pytest.approx(0.3) and row["participants"] == 3
    assert "refused" not in row and "miscounted" not in row
    assert round_row(report._replace(miscounted=(3,)), ("head",), np.ones(3))["miscounted"] == [3]
    assert round_row(report._replace(refused=(2, 5)), ("head",), np.ones(3))["refused"] == [2, 5]
    single = round_row(report._replace(accuracy={"head": accuracy["head"]}), ("head",), np.ones(3))
    assert [name for name in single if name.startswith("accuracy")] == ["accuracy_participants"]
    for nothing in ({}, dict.fromkeys(accuracy, np.full(2, np.nan))):
        row = round_row(report._replace(accuracy=nothing), ("prototype", "head"), np.ones(3))
        assert not [name for name in row if name.startswith("accuracy")]


def test_what_some_runs_have_is_a_column_where_they_have_it():
    optional = {"absent", "simulated_seconds", "late", "arrived_late", "epsilon", "refused"}
    assert not optional & set(round_row(REPORT, ("head",), np.ones(2)))
    full = REPORT._replace(absent=0, seconds=2.0, late=(1,), arrived_late=(), epsilon=3.0)
    full = full._replace(stages={"host": 0.5})
    row = round_row(full, ("head",), np.ones(2))
    expected = {"absent": 0, "simulated_seconds": 2.0, "late": [1], "arrived_late": []}
    expected |= {"epsilon": 3.0, "seconds_host": 0.5}
    assert {name: row.get(name) for name in expected} == expected
    assert "epsilon" not in round_row(full._replace(epsilon=np.inf), ("head",), np.ones(2))
    accuracy = {"head": np.full(2, np.nan), "prototype": np.array([0.5, np.nan])}
    row = round_row(REPORT._replace(accuracy=accuracy), ("head", "prototype"), np.ones(2))
    assert "accuracy_participants" not in row and row["accuracy_participants_prototype"] == 0.5


def test_after_round_can_stop_it():
    simulation = scripted([0.0] * 9)
    _, history = run(simulation, rounds=8, after_round=lambda state, history: state.round == 3)
    assert history[-1]["round"] == 3


def test_only_some_clients_are_evaluated():
    _, history = run(scripted([0.5, 0.5]), rounds=1, only=np.array([2]))
    assert all(row["clients"] == [0.5] and row["client_ids"] == [2] for row in history)
    assert history[1]["wasted_lane_steps"] == 0.25


def test_validation_chooses_where_there_is_one():
    accuracies = [(0.1, 0.9), (0.8, 0.2)]
    rows = [{"round": i, "accuracy": a, "val_accuracy": v} for i, (a, v) in enumerate(accuracies)]
    assert best(rows).on_test["round"] == 1 and best(rows).on_val["round"] == 0
    assert repr(best(rows)) == (
        "<Best accuracy: by test 80.00% (round 1), by validation 10.00% (round 0), "
        "last 80.00% (round 1)>"
    )
    assert Ending(patience=1).reason(rows) == "patience" and Ending(patience=2).reason(rows) is None


def test_the_first_rule_is_reported_and_clients_without_samples_are_none():
    prototype = np.array([0.25, 0.75, np.nan])
    accuracy = {"test": {"head": np.array([0.5, 0.5, np.nan]), "prototype": prototype}}
    counts = {"test": np.array([4, 12, 0]), "train": np.array([3, 1, 9])}
    row = evaluation_row(Evaluation(accuracy, counts, {"head": 0.75}), ("prototype", "head"))
    assert row["accuracy"] == 0.5 and row["accuracy_head"] == pytest.approx(0.5)
    assert row["accuracy_weighted"] == pytest.approx((4 * 0.25 + 12 * 0.75) / 16)
    assert row["accuracy_train_weighted"] == pytest.approx((3 * 0.25 + 1 * 0.75) / 4)
    assert row["clients"] == [0.25, 0.75, None]
    assert row["global_accuracy_head"] == 0.75


def spoiled(simulation, not_finite, server_finite=None):
    """The simulation, with clients (or the server) not finite in some rounds: round -> clients."""

    def run_round(state, score=True):
        state, report = simulation.run_round(state)
        clients, finite = not_finite.get(state.round, ()), state.round != server_finite
        return state, report._replace(not_finite=clients, server_finite=finite)

    return dataclasses.replace(simulation, run_round=run_round)


def test_results_that_are_not_finite_are_warned_of_once():
    simulation = spoiled(scripted([0.5] * 9), {2: (0, 3), 3: (0, 3), 5: (0, 1)}, server_finite=4)
    rows = []
    with pytest.warns(RuntimeWarning) as caught:
        _, history = run(simulation, rounds=5, progress_fn=rows.append)
    lines = [str(warning.message) for warning in caught]
    who = ((2, "client 0, client 3"), (4, "the server"), (5, "client 1"))
    expected = [f"round {n}: the results of {names}" for n, names in who]
    assert [line.partition(" are not")[0] for line in lines] == expected
    assert all("simulation.find_fault(state)" in line for line in lines)
    assert {warning.filename for warning in caught} == {__file__} and rows == history


def test_finite_rounds_and_the_inner_loop_are_silent(recwarn):
    run(scripted([0.5] * 9), rounds=3)
    run_each([spoiled(scripted([0.5] * 9), {1: (0,)})], 3, [None], histories=[()])
    assert not recwarn.list


@pytest.mark.parametrize("store", ["device", "host"])
def test_a_state_that_is_given_stays_valid_and_one_that_is_kept_can_be_run_again(store):
    simulation = simulation_of("fedproto", devices=1, client_store=store)
    start = simulation.init()
    kept = []

    def keep_the_first(state, history):
        if not kept:
            kept.append(copy_state(state))

    end, history = run(simulation, 2, state=start, after_round=keep_the_first)
    again, same = run(simulation, 2, state=start)
    assert identical(to_host(again), to_host(end))
    assert same[-1]["accuracy"] == history[-1]["accuracy"]
    on_host = jax.tree.map(np.asarray, kept[0])  # its round, too, is an array then
    for state in (kept[0], on_host):
        later, _ = run(simulation, 2, state=state, history=history[:2])
        assert identical(to_host(later), to_host(end)) and later.round == 2


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
