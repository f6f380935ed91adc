"""Several runs, round by round: the seeds of an entry, the points of a search, or one alone."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.simulation.ending import NEVER, Ending
from fedjax_ht.simulation.report import RoundReport
from fedjax_ht.simulation.rows import Row, evaluation_row, round_row
from fedjax_ht.simulation.simulation import Rounds, Simulation
from fedjax_ht.simulation.state import SimulationState

Each = Callable[[Callable[[Any, SimulationState], Any], Sequence[Any], Sequence[Any]], list]
"""(function of a simulation and its state, simulations, their states) -> the results."""


def one_after_another(
    function: Callable[[Any, SimulationState], Any],
    simulations: Sequence[Rounds | Simulation],
    states: Sequence[SimulationState],
) -> list:
    """Calls a function for one run after another, see `Each`."""
    return [function(*run) for run in zip(simulations, states)]


def run_each(
    simulations: Sequence[Rounds | Simulation],
    rounds: int,
    states: Sequence[SimulationState | None],
    *,
    histories: Sequence[Sequence[Row]],
    after_round: Callable[[list[SimulationState], list[list[Row]]], bool] | None = None,
    ending: Ending = NEVER,
    each: Each = one_after_another,
    numbers: Sequence[int] | None = None,
    eval_every: int = 1,
    progress_fn: Callable[[Row], None] | None = None,
    only: np.ndarray | None = None,
    score_every: int = 1,
) -> tuple[list[SimulationState], list[list[Row]]]:
    """Runs several runs round by round; each is the run that it would be alone, and they end
    together, when all of them are over.

    Args:
      simulations: the runs.
      states: each run's last state, or None. They may stand at different rounds, as after a process
        that was killed while it saved them: those behind go on first.
      histories: each run's rows.
      ending: limits at which a run ends before its last round.
      after_round: called with all states and histories after each round, or None; True stops the
        runs.
      each: calls a round, or an evaluation, of some of the runs.
      numbers: "trial" in the rows of each run; None counts from 0.
      Others as `history.run`.
    """
    # Traced before anything is compiled, so that a method's mistakes come first.
    flops = [_flops_of_rounds(*run, rounds) for run in zip(simulations, states)]
    reached: list[SimulationState] = []
    for simulation, state in zip(simulations, states):
        reached.append(simulation.init() if state is None else state)
    course = _Course(
        simulations=simulations,
        states=reached,
        histories=[list(history) for history in histories],
        numbers=range(len(reached)) if numbers is None else numbers,
        flops=flops,
        each=each,
        only=only,
        progress_fn=progress_fn,
    )
    course.begin()
    while not all_done(course.states, course.histories, rounds, ending):
        number = 1 + min(state.round for state in course.states)
        is_scored = _is_due(number, score_every, rounds)
        course.play(number, is_scored, evaluates=_is_due(number, eval_every, rounds))
        if after_round is not None and after_round(course.states, course.histories):
            break
    return course.states, course.histories


@dataclasses.dataclass
class _Course:
    """Several runs between their rounds: states, rows, and the arguments of `run_each`."""

    simulations: Sequence[Rounds | Simulation]
    states: list[SimulationState]
    histories: list[list[Row]]
    numbers: Sequence[int]
    flops: Sequence[np.ndarray]
    each: Each
    only: np.ndarray | None
    progress_fn: Callable[[Row], None] | None

    def begin(self) -> None:
        """Evaluates the untrained federations of the runs that have no row."""
        new = [i for i, history in enumerate(self.histories) if not history]
        start = time.perf_counter()
        columns = dict(zip(new, self._call(new, self._evaluate)))
        self._add(columns, start, start)

    def play(self, number: int, score: bool, evaluates: bool) -> None:
        """Plays round `number`, from 1, of the runs that have not done it."""

        def play(
            simulation: Rounds | Simulation, state: SimulationState
        ) -> tuple[SimulationState, RoundReport]:
            return simulation.run_round(state, score)

        behind = [i for i, state in enumerate(self.states) if state.round < number]
        start, columns = time.perf_counter(), {}
        for i, (state, report) in zip(behind, self._call(behind, play)):
            self.states[i] = state
            columns[i] = round_row(report, self.simulations[i].rules, self.flops[i])
        trained = time.perf_counter()
        if evaluates:
            for i, scores in zip(behind, self._call(behind, self._evaluate)):
                columns[i] |= scores
        self._add(columns, start, trained)

    def _call(self, indices: Sequence[int], function: Callable) -> list:
        simulations = [self.simulations[i] for i in indices]
        return self.each(function, simulations, [self.states[i] for i in indices])

    def _evaluate(self, simulation: Rounds | Simulation, state: SimulationState) -> Row:
        scores = simulation.evaluate(state, self.only)
        return evaluation_row(scores, simulation.rules, self.only)

    def _add(self, columns: Mapping[int, Row], start: float, trained: float) -> None:
        """Adds a row to the history of each run; the evaluation's seconds are those since
        `trained`."""
        seconds = {
            "seconds_round": trained - start,
            "seconds_evaluation": time.perf_counter() - trained,
        }
        for i, of_run in columns.items():
            row = {"round": self.states[i].round, "trial": self.numbers[i]} | of_run | seconds
            _append(self.histories[i], row, self.progress_fn)


def _flops_of_rounds(
    simulation: Rounds | Simulation, state: SimulationState | None, rounds: int
) -> np.ndarray:
    """Returns FLOPs of clients in a round, [num_clients]; [0] after the last round."""
    done = 0 if state is None else state.round
    if done >= rounds:
        return np.zeros(0)
    return simulation.client_flops()


def _is_due(number: int, every: int, last: int) -> bool:
    """Returns whether round `number`, from 1, is the last one or one of every so many."""
    return number % every == 0 or number == last


def all_done(
    states: Sequence[SimulationState],
    histories: Sequence[Sequence[Row]],
    rounds: int,
    ending: Ending,
) -> bool:
    """Returns whether all runs stand at one round, and none has rounds left to do."""
    done = {state.round for state in states}
    if len(done) > 1:
        return False
    return done.pop() >= rounds or all(ending.reason(history) for history in histories)


def _append(history: list[Row], row: Row, progress_fn: Callable[[Row], None] | None) -> None:
    """Adds a row to the history of its run, and tells of it."""
    if "simulated_seconds" in row:  # the clock goes on from the last row
        before = history[-1].get("simulated_clock", 0.0)
        row["simulated_clock"] = before + row["simulated_seconds"]
    history.append(row)
    if progress_fn is not None:
        progress_fn(row)
