"""The loop over rounds, and its history: plain rows, see `rows`."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.annotations import Count, Whole
from fedjax_ht.core.bounds import checked
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.rows import Row, evaluation_row, round_row
from fedjax_ht.simulation.simulation import Rounds, Simulation
from fedjax_ht.simulation.state import SimulationState, copy_state
from fedjax_ht.simulation.watch import Watch, check_start


class Best(NamedTuple):
    """The best evaluation of a run and the last one, all rows of the history."""

    on_test: Row
    on_val: Row | None
    last: Row


def wire_bytes(row: Row, *ways: str) -> int:
    """Returns the bytes, payload and metadata, of a row's "uplink" or "downlink"; without `ways`
    of both. Row 0 has none."""
    count = 0
    for way in ways or ("uplink", "downlink"):
        count += row.get(f"{way}_payload_bytes", 0) + row.get(f"{way}_metadata_bytes", 0)
    return count


def has_clock(histories: Mapping[str, Sequence[Row]]) -> bool:
    """Returns whether any rounds took simulated time."""
    return any("simulated_clock" in row for history in histories.values() for row in history)


@checked
def by_trial(history: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each trial, in order."""
    rows: dict[int, list[Row]] = {}
    for row in history:
        rows.setdefault(row["trial"], []).append(row)
    return [rows[trial] for trial in sorted(rows)]


def evaluated(history: Sequence[Row]) -> list[Row]:
    """Returns the rows of one trial that hold an evaluation."""
    return [row for row in history if "accuracy" in row]


@checked
def best(history: Sequence[Row]) -> Best:
    """Returns one trial's best row by test accuracy (as the papers choose), the best by validation
    accuracy, if it has any, and the last.

    Raises:
      ValueError: no row has an evaluation, or the rows are of several trials.
    """
    evaluations = evaluated(history)
    if not evaluations:
        raise ValueError(
            f"history has {len(history)} rows, none with a test accuracy; best takes the history "
            "that run returns"
        )
    trials = {row.get("trial", 0) for row in history}
    if len(trials) > 1:
        raise ValueError(
            f"history has the rows of {len(trials)} trials; give those of one: "
            "best(by_trial(history)[0])"
        )
    return Best(
        on_test=max(evaluations, key=lambda row: row["accuracy"]),
        on_val=best_by(history, "val_accuracy"),
        last=evaluations[-1],
    )


def best_by(history: Sequence[Row], score: str) -> Row | None:
    """Returns one trial's row with the highest `score`; None if none has it.

    For "accuracy_participants" this is a maximum over rounds and over draws of participants: biased
    upwards, the more the fewer they are and the longer the run.
    """
    best_row = None
    for row in history:
        if score in row and (best_row is None or row[score] > best_row[score]):
            best_row = row
    return best_row


def out_of_patience(history: Sequence[Row], patience: int | None) -> bool:
    """Returns True once one trial has had `patience` evaluations without a new best, on validation
    where there is one, else on test."""
    rows = evaluated(history)
    if patience is None or not rows:
        return False
    key = "accuracy"
    if "val_accuracy" in rows[-1]:
        key = "val_accuracy"
    scores = [row[key] for row in rows]
    return len(scores) - 1 - int(np.argmax(scores)) >= patience


def silent(history: Sequence[Row], rounds: int | None) -> bool:
    """Returns True once nothing has arrived in so many rounds of one trial in a row; one without
    participants is none."""
    arrived = [row["arrived"] for row in history if "arrived" in row and row.get("participants", 1)]
    return bool(rounds) and len(arrived) >= rounds and not any(arrived[-rounds:])


def is_over(history: Sequence[Row], patience: int | None, give_up: int | None) -> bool:
    """Returns whether one trial ends before its last round."""
    return out_of_patience(history, patience) or silent(history, give_up)


@checked
def run(
    simulation: Rounds | Simulation,
    rounds: Whole,
    *,
    state: SimulationState | None = None,
    history: Sequence[Row] = (),
    eval_every: Count = 1,
    patience: Count | None = None,
    progress_fn: Callable[[Row], None] | None = None,
    after_round: Callable[[SimulationState, list[Row]], bool] | None = None,
    only: np.ndarray | None = None,
    give_up: Whole | None = None,
    score_every: Count = 1,
) -> tuple[SimulationState, list[Row]]:
    """Runs up to `rounds` rounds, from the start or from where `state` and `history` stand.

    Clients and servers whose results are not finite keep their old state; a RuntimeWarning names
    them, each once, and tells of training that diverges, see `divergence.Divergence`.

    Args:
      simulation: the federation to run.
      rounds: total, those already in `state` included.
      state: the last state of an earlier run to go on from; it is copied and stays valid.
      history: the rows of that earlier run.
      eval_every: rounds between evaluations; the untrained federation and the last round are always
        evaluated.
      patience: evaluations without a new best, in every trial, after which to stop, or None.
      progress_fn: called with each new row.
      after_round: called with the state and the history after each round; True stops the run. The
        next round works on the state's arrays in place: keep `copy_state(state)`, never the state
        itself.
      only: ids of the clients to evaluate, or None for all.
      give_up: rounds in a row without a single upload, in every trial, after which to stop, or
        None.
      score_every: rounds between those whose participants are scored as training left them; the
        last round's are.

    Returns:
      The last state, and the history, plain rows, see `Row`.

    Raises:
      ValueError: an argument is of another kind or out of its range, or a history comes without the
        state that it ends with. One line, before anything is compiled.

    Example:
      >>> state, history = fl.run(simulation, rounds=5)
      >>> state, history = fl.run(simulation, rounds=8, state=state, history=history)  # three more
    """
    check_start(state, history)
    if state is not None:
        state = copy_state(state)
    divergence = Divergence(simulation.num_classes, history)
    watched = Watch(progress_fn, simulation.trials, divergence)
    return run_rounds(
        simulation,
        rounds,
        state,
        history=history,
        eval_every=eval_every,
        patience=patience,
        progress_fn=watched,
        after_round=after_round,
        only=only,
        give_up=give_up,
        score_every=score_every,
    )


def run_rounds(
    simulation: Rounds | Simulation,
    rounds: int,
    state: SimulationState | None = None,
    *,
    history: Sequence[Row] = (),
    eval_every: int = 1,
    patience: int | None = None,
    progress_fn: Callable[[Row], None] | None = None,
    after_round: Callable[[SimulationState, list[Row]], bool] | None = None,
    only: np.ndarray | None = None,
    give_up: int | None = None,
    score_every: int = 1,
) -> tuple[SimulationState, list[Row]]:
    """Runs as `run` does, without warnings, and on the arrays of `state` themselves, which are gone
    afterwards: for callers that hold states once and tell of their rows in their own way."""
    history = list(history)
    # Traced before anything is compiled, so that a method's mistakes come first.
    flops = _flops_of_rounds(simulation, state, rounds)
    if state is None:
        state = simulation.init()
    if not history:
        start = time.perf_counter()
        columns = _evaluated_columns(simulation, state, only)
        seconds = {"seconds_round": 0.0, "seconds_evaluation": time.perf_counter() - start}
        _append_rows(history, state.round, columns, seconds, progress_fn)
    while state.round < rounds and not _all_over(history, patience, give_up):
        start = time.perf_counter()
        number = state.round + 1
        state, reports = simulation.run_round(state, _is_due(number, score_every, rounds))
        trained = time.perf_counter()
        columns = _round_columns(simulation, reports, flops)
        if _is_due(number, eval_every, rounds):
            for row, scores in zip(columns, _evaluated_columns(simulation, state, only)):
                row.update(scores)
        seconds = {
            "seconds_round": trained - start,
            "seconds_evaluation": time.perf_counter() - trained,
        }
        _append_rows(history, state.round, columns, seconds, progress_fn)
        if after_round is not None and after_round(state, history):
            break
    return state, history


def _flops_of_rounds(
    simulation: Rounds | Simulation, state: SimulationState | None, rounds: int
) -> np.ndarray:
    """Returns FLOPs of clients in a round, [trials, num_clients]; [0, 0] after the last round."""
    done = 0 if state is None else state.round
    if done >= rounds:
        return np.zeros((0, 0))
    return np.reshape(simulation.client_flops(), (simulation.trials or 1, -1))


def _is_due(number: int, every: int, last: int) -> bool:
    """Returns whether round `number`, from 1, is the last one or one of every so many."""
    return number % every == 0 or number == last


def _all_over(history: Sequence[Row], patience: int | None, give_up: int | None) -> bool:
    """Returns whether every trial ends here."""
    return all(is_over(trial, patience, give_up) for trial in by_trial(history))


def _per_trial(simulation: Rounds | Simulation, result: Any) -> list:
    """Returns the results of a simulation as a list, one a trial; a single trial's too."""
    if simulation.trials is None:
        return [result]
    return result


def _evaluated_columns(
    simulation: Rounds | Simulation, state: SimulationState, only: np.ndarray | None
) -> list[Row]:
    """Evaluates; returns the columns of each trial."""
    evaluations = _per_trial(simulation, simulation.evaluate(state, only))
    return [evaluation_row(e, simulation.rules, only) for e in evaluations]


def _round_columns(simulation: Rounds | Simulation, reports: Any, flops: np.ndarray) -> list[Row]:
    """Returns the columns of a round's reports, of each trial."""
    columns = []
    for report, of_trial in zip(_per_trial(simulation, reports), flops):
        columns.append(round_row(report, simulation.rules, of_trial))
    return columns


def _append_rows(
    history: list[Row],
    number: int,
    columns: Sequence[Row],
    seconds: dict[str, float],
    progress_fn: Callable[[Row], None] | None,
) -> None:
    """Adds the rows of all trials after `number` rounds to the history, and tells of each."""
    for trial, of_trial in enumerate(columns):
        row = {"round": number, "trial": trial} | of_trial | seconds
        if "simulated_seconds" in row:  # the clock goes on from this trial's last row
            before = history[-len(columns)].get("simulated_clock", 0.0)
            row["simulated_clock"] = before + row["simulated_seconds"]
        history.append(row)
        if progress_fn is not None:
            progress_fn(row)
