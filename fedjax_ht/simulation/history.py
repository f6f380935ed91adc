"""The loop over rounds and its history, a list of plain rows (see `rows`)."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.check.options import Count, Whole, checked
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.rows import Row, Runs, evaluated, merit, score_of
from fedjax_ht.simulation.runs import Ending, run_each
from fedjax_ht.simulation.simulation import Rounds
from fedjax_ht.simulation.state import SimulationState, copy_state


class Best(NamedTuple):
    """Rows of a run's history: the best ones by test and by validation score, and the last one."""

    on_test: Row
    on_val: Row | None
    last: Row

    def __repr__(self) -> str:
        rows = {"by test": self.on_test, "by validation": self.on_val, "last": self.last}
        parts, score = [], score_of(self.last)
        for name, row in rows.items():
            if row is not None:
                value = f"{row[score]:.2%}" if score == "accuracy" else f"{row[score]:.4g}"
                parts.append(f"{name} {value} (round {row['round']})")
        return f"<Best {score}: {', '.join(parts)}>"


def wire_bytes(row: Row, *ways: str) -> int:
    """Returns the bytes (payload and metadata) of a row's "uplink", "downlink", or both by default.

    Row 0 has none.
    """
    count = 0
    for way in ways or ("uplink", "downlink"):
        count += row.get(f"{way}_payload_bytes", 0) + row.get(f"{way}_metadata_bytes", 0)
    return count


def merged(runs: Runs) -> list[Row]:
    """Returns the rows of all runs of an entry, round by round."""
    # sorted() is stable: within a round the runs keep their order.
    return sorted(itertools.chain(*runs), key=lambda row: row["round"])


@checked
def best(history: Sequence[Row]) -> Best:
    """Returns a run's best row by test score (as in papers), by validation score, and the last.

    The score is the accuracy, or that of another task. Without validation sets, the second is None.

    Raises:
      ValueError: no row has an evaluation, or the rows are from several trials.
    """
    evaluations = evaluated(history)
    if not evaluations:
        raise ValueError(
            f"history has {len(history)} rows, none with a test accuracy; give best the history "
            "returned by run"
        )
    trials = {row.get("trial", 0) for row in history}
    if len(trials) > 1:
        raise ValueError(
            f"history has the rows of {len(trials)} trials; give those of one: "
            "best([row for row in history if row['trial'] == 0])"
        )
    score = score_of(evaluations[-1])
    return Best(
        on_test=max(evaluations, key=lambda row: merit(row, score)),
        on_val=best_by(history, f"val_{score}"),
        last=evaluations[-1],
    )


def best_by(history: Sequence[Row], score: str) -> Row | None:
    """Returns a run's row with the best `score`; None if no row has it.

    For "accuracy_participants" this is a maximum over rounds and draws of participants. It is
    biased upwards, the more so with fewer participants and longer runs.
    """
    best_row = None
    for row in history:
        if score not in row:
            continue
        if best_row is None or merit(row, score) > merit(best_row, score):
            best_row = row
    return best_row


@checked
def run(
    simulation: Rounds,
    rounds: Whole,
    *,
    state: SimulationState | None = None,
    history: Sequence[Row] = (),
    eval_every: Count = 1,
    patience: Count | None = None,
    progress_fn: Callable[[Row], object] | None = None,
    after_round: Callable[[SimulationState, list[Row]], object] | None = None,
    only: Sequence[int] | np.ndarray | None = None,
    give_up: Whole | None = None,
    score_every: Count = 1,
) -> tuple[SimulationState, list[Row]]:
    """Runs up to `rounds` rounds, from the start or from `state` and `history`.

    Clients and servers whose results are not finite keep their old state. A RuntimeWarning names
    each once. Others report diverging training, see `divergence.Divergence`.

    Args:
      simulation: the federation to run.
      rounds: total number, including those in `state`.
      state: the last state of an earlier run, to resume from; it is copied and stays valid.
      history: the rows of that earlier run; without them `simulated_clock` starts at 0.
      eval_every: rounds between evaluations; the untrained federation and round `rounds` always
        have one. A run that stops earlier may lack a last one.
      patience: evaluations without a new best score after which to stop, or None. Scores are those
        on validation sets if there are any, else on test sets.
      progress_fn: called with each new row.
      after_round: called with the state and the history after each round; True stops the run. The
        next round changes the state's arrays in place: keep `copy_state(state)`, never the state
        itself.
      only: ids of the clients to evaluate, or None for all.
      give_up: rounds in a row without a single upload after which to stop, or None.
      score_every: rounds between scores of the participants after their training; round
        `rounds` always has them.

    Returns:
      The last state, and the history, plain rows, see `Row`.

    Raises:
      ValueError: an argument has the wrong type or is out of range, or `history` is given without
        `state`. One line, before compilation.

    Example:
      >>> state, history = fl.run(simulation, rounds=5)
      >>> state, history = fl.run(simulation, rounds=8, state=state, history=history)  # three more
    """
    if history:
        check_start(state, history)
    if state is not None:
        state = copy_state(state)
    divergence, named = Divergence(simulation.num_classes, history), set()

    def watched(row: Row) -> None:
        for line in (*not_finite(row, named), *divergence.notes(row)):
            # stacklevel: the caller of `run`, outside the check of its arguments
            warnings.warn(f"round {row['round']}: {line}", RuntimeWarning, stacklevel=6)
        if progress_fn is not None:
            progress_fn(row)

    (state,), (rows,) = run_each(
        [simulation],
        rounds,
        [state],
        histories=[history],
        eval_every=eval_every,
        ending=Ending(patience, give_up),
        progress_fn=watched,
        after_round=after_round and (lambda states, runs: after_round(states[0], runs[0])),
        only=None if only is None else np.asarray(only),
        score_every=score_every,
    )
    return state, rows


SHOWN = 10  # names in a warning


def check_start(state: SimulationState | None, history: Sequence[Row]) -> None:
    """Raises ValueError if history and state end at different rounds: two runs would be mixed."""
    if state is None:
        raise ValueError(
            f"history has {len(history)} rows, but its state is missing; give both, as returned "
            "by run: run(simulation, rounds, state=state, history=history)"
        )
    last, done = history[-1]["round"], int(state.round)
    if last != done:
        raise ValueError(
            f"history ends with round {last}, but state is at round {done}; give the rows "
            f"up to then: [row for row in history if row['round'] <= {done}]"
        )


def not_finite(row: Row, named: set[str]) -> list[str]:
    """Returns a message on clients and servers whose results are not finite for the first time.

    It adds them to `named`.
    """
    new = [f"client {i}" for i in row.get("not_finite", ()) if f"client {i}" not in named]
    if not row.get("server_finite", True) and "the server" not in named:
        new.append("the server")
    if not new:
        return []
    named |= set(new)
    return [
        f"the results of {listed(new, SHOWN)} are not finite and were excluded; "
        "simulation.find_fault(state) finds where a round first goes wrong"
    ]
