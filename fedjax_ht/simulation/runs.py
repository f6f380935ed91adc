"""One or several runs (the seeds of an entry), round by round, and limits that end runs early."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedjax_ht.simulation.rows import (
    History,
    Row,
    evaluated,
    evaluation_row,
    merit,
    round_row,
    score_of,
)
from fedjax_ht.simulation.simulation import Rounds
from fedjax_ht.simulation.state import SimulationState

Reason = Literal["silence", "patience"]


class Ending(NamedTuple):
    """Limits that end a run before its last round; by default there are none.

    Attributes:
      patience: evaluations without a new best score after which a run ends; scores are those on
        validation sets if there are any, else on test sets.
      give_up: consecutive rounds without arrivals after which a run ends; None or 0 for no limit.
    """

    patience: int | None = None
    give_up: int | None = None

    def reason(self, history: History) -> Reason | None:
        """Returns why a run ends here, or None if it continues."""
        if self.give_up and silent(history, self.give_up):
            return "silence"
        if self.patience is not None and _out_of_patience(history, self.patience):
            return "patience"
        return None


NEVER = Ending()


def silent(history: History, rounds: int) -> bool:
    """Returns True if nothing arrived in the last `rounds` rounds with participants or uploads.

    Rounds whose uploads arrive later do not count.
    """
    rows = [row for row in history if "arrived" in row]
    rows = [row for row in rows if not (row.get("late") and "arrived_late" in row)]
    arrived = [row["arrived"] for row in rows if row["arrived"] or row.get("participants", 1)]
    return len(arrived) >= rounds and not any(arrived[-rounds:])


def _out_of_patience(history: History, patience: int) -> bool:
    rows = evaluated(history)
    if not rows:
        return False
    key = score_of(rows[-1])
    if f"val_{key}" in rows[-1]:
        key = f"val_{key}"
    scores = [merit(row, key) for row in rows if key in row]
    return len(scores) - 1 - int(np.argmax(scores)) >= patience


def run_each(
    simulations: Sequence[Rounds],
    rounds: int,
    states: Sequence[SimulationState | None],
    *,
    histories: Sequence[Sequence[Row]],
    after_round: Callable[[list[SimulationState], list[list[Row]]], object] | None = None,
    ending: Ending = NEVER,
    numbers: Sequence[int] | None = None,
    eval_every: int = 1,
    progress_fn: Callable[[Row], None] | None = None,
    only: np.ndarray | None = None,
    score_every: int = 1,
) -> tuple[list[SimulationState], list[list[Row]]]:
    """Runs several runs round by round.

    Each has the same results as it would have alone. They end together, when all of them are over.

    Args:
      simulations: the runs.
      states: each run's last state, or None. Their rounds may differ, e.g. if a process was killed
        while it saved them; runs that are behind catch up first.
      histories: each run's rows.
      ending: limits that end a run before its last round.
      after_round: called with all states and histories after each round, or None; True stops the
        runs.
      numbers: "trial" in the rows of each run; None counts from 0.
      Others as for `history.run`.
    """
    # Traced before anything is compiled, so that a method's errors come first.
    flops = []
    for simulation, state in zip(simulations, states):
        is_over = state is not None and state.round >= rounds
        flops.append(np.zeros(0) if is_over else simulation.client_flops())
    reached: list[SimulationState] = []
    for simulation, state in zip(simulations, states):
        reached.append(simulation.init() if state is None else state)
    rows = [list(history) for history in histories]
    numbers = range(len(reached)) if numbers is None else numbers

    def evaluation(i: int) -> Row:
        scores = simulations[i].evaluate(reached[i], only)
        return evaluation_row(scores, simulations[i].rules, only)

    def add(columns: Mapping[int, Row], start: float, trained: float) -> None:
        """Adds a row to each run's history, with the seconds of all runs together."""
        seconds = {
            "seconds_round": trained - start,
            "seconds_evaluation": time.perf_counter() - trained,
        }
        for i, of_run in columns.items():
            row = {"round": reached[i].round, "trial": numbers[i]} | of_run | seconds
            if "simulated_seconds" in row:  # the clock continues from the last row
                before = rows[i][-1].get("simulated_clock", 0.0)
                row["simulated_clock"] = before + row["simulated_seconds"]
            rows[i].append(row)
            if progress_fn is not None:
                progress_fn(row)

    start = time.perf_counter()
    add({i: evaluation(i) for i, history in enumerate(rows) if not history}, start, start)
    while not all_done(reached, rows, rounds, ending):
        number = 1 + min(state.round for state in reached)
        score, evaluates = _is_due(number, score_every, rounds), _is_due(number, eval_every, rounds)
        behind = [i for i, state in enumerate(reached) if state.round < number]
        start, columns = time.perf_counter(), {}
        for i in behind:
            reached[i], report = simulations[i].run_round(reached[i], score)
            columns[i] = round_row(report, simulations[i].rules, flops[i])
        trained = time.perf_counter()
        if evaluates:
            for i in behind:
                columns[i] |= evaluation(i)
        add(columns, start, trained)
        if after_round is not None and after_round(reached, rows):
            break
    return reached, rows


def _is_due(number: int, every: int, last: int) -> bool:
    """Returns whether round `number` (from 1) is the last one or a multiple of `every`."""
    return number % every == 0 or number == last


def all_done(
    states: Sequence[SimulationState],
    histories: Sequence[Sequence[Row]],
    rounds: int,
    ending: Ending,
) -> bool:
    """Returns whether all runs are at the same round, and none has rounds left."""
    done = {state.round for state in states}
    if len(done) > 1:
        return False
    return done.pop() >= rounds or all(ending.reason(history) for history in histories)
