"""The loop over rounds, and its history: plain rows that go to files, tables and plots as they
are."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.metrics.accuracy import summarise
from fedjax_ht.simulation.report import Evaluation, RoundReport
from fedjax_ht.simulation.simulation import Rounds, Simulation
from fedjax_ht.simulation.state import SimulationState, copy_state

Row = dict[str, Any]
"""JSON values only. "round" counts rounds done, row 0 is the untrained federation; "trial" counts
from 0. Seconds are those of the whole program, whatever the number of trials."""

SHOWN = 10  # names in a warning


class Best(NamedTuple):
    """The best evaluation of a run and the last one, all rows of the history."""

    on_test: Row
    on_val: Row | None
    last: Row


def evaluation_row(
    evaluation: Evaluation, rules: Sequence[str], only: np.ndarray | None = None
) -> Row:
    """Flattens an evaluation; "accuracy" is the method's first rule on the clients' own test sets.

    Keys: accuracy, accuracy_weighted (by test samples), accuracy_train_weighted (by training
      samples, DFRD's L.acc),
    accuracy_std, accuracy_worst10, val_accuracy (with a validation set), train_accuracy (where it
    is evaluated), accuracy_<rule> for every rule,
    global_accuracy_head (with a global model, DFRD's G.acc), clients (accuracy per client), and,
    where only some were evaluated, client_ids.
    """
    row: Row = {}
    for split, by_rule in evaluation.accuracy.items():
        prefix = "" if split == "test" else f"{split}_"
        seen = np.where(np.isnan(by_rule[rules[0]]), 0, evaluation.counts[split])
        summary = summarise(by_rule[rules[0]], seen)
        row |= {f"{prefix}accuracy": summary.mean, f"{prefix}accuracy_weighted": summary.weighted}
        if split == "test":
            weights = np.where(evaluation.counts[split] > 0, evaluation.counts["train"], 0)
            row["accuracy_train_weighted"] = summarise(by_rule[rules[0]], weights).weighted
            row |= {"accuracy_std": summary.std, "accuracy_worst10": summary.worst}
            row |= {
                f"accuracy_{rule}": summarise(by_rule[rule], evaluation.counts[split]).mean
                for rule in rules
            }
            own = by_rule[rules[0]] if only is None else by_rule[rules[0]][only]
            row["clients"] = [None if np.isnan(a) else float(a) for a in own]
            if only is not None:
                row["client_ids"] = [int(i) for i in only]
    return row | {
        f"global_accuracy_{rule}": value for rule, value in evaluation.global_accuracy.items()
    }


def round_row(report: RoundReport, rules: Sequence[str], client_flops: np.ndarray) -> Row:
    """Flattens a round's report: client and server metrics, who arrived, the FLOPs of the
    participants of `client_flops` [num_clients] together, and the wire in elements and bytes.

    "accuracy_participants" is the mean over the round's participants, freshly trained, before
    anything comes down, by the first rule; accuracy_participants_<rule> where there are several. It
    is absent where none has a test sample. "epsilon" is absent where nothing is private, and where
    there is no noise.
    """
    row: Row = dict(report.metrics) | report.server_metrics
    for i, rule in enumerate(rules):
        values = report.accuracy.get(rule, np.full(1, np.nan))
        if not np.isnan(values).all():
            names = ["accuracy_participants"] * (i == 0) + [f"accuracy_participants_{rule}"] * (
                len(rules) > 1
            )
            row |= dict.fromkeys(names, float(np.nanmean(values)))
    row |= {
        "participants": len(report.participants),
        "arrived": report.arrived,
        "not_finite": list(report.not_finite),
    }
    row |= {"server_finite": report.server_finite, "far_off": [list(one) for one in report.far_off]}
    if report.refused:
        row["refused"] = list(report.refused)
    if report.absent is not None:
        row["absent"] = report.absent
    if report.seconds is not None:
        row |= {"simulated_seconds": report.seconds, "late": list(report.late)}
    if report.arrived_late is not None:
        row["arrived_late"] = list(report.arrived_late)
    if report.epsilon is not None and np.isfinite(report.epsilon):
        row["epsilon"] = report.epsilon
    row |= {f"seconds_{name}": seconds for name, seconds in (report.stages or {}).items()}
    row["flops"] = float(client_flops[report.participants].sum())
    row["wasted_lane_steps"] = report.wasted_lane_steps
    for way, cost in (("uplink", report.uplink), ("downlink", report.downlink)):
        row |= {f"{way}_{field}": value for field, value in cost._asdict().items()}
    return row


def wire_bytes(row: Row, *ways: str) -> int:
    """Payload and metadata of a row's "uplink" or "downlink", of both unless told, in bytes; 0 for
    row 0."""
    return sum(
        row.get(f"{way}_{part}_bytes", 0)
        for way in ways or ("uplink", "downlink")
        for part in ("payload", "metadata")
    )


def has_clock(histories: Mapping[str, Sequence[Row]]) -> bool:
    """Whether any rounds took simulated time."""
    return any("simulated_clock" in row for history in histories.values() for row in history)


def by_trial(history: Sequence[Row]) -> list[list[Row]]:
    """The rows of each trial, in order."""
    trials = sorted({row["trial"] for row in history})
    return [[row for row in history if row["trial"] == t] for t in trials]


def evaluated(history: Sequence[Row]) -> list[Row]:
    """The rows of one trial that hold an evaluation."""
    return [row for row in history if "accuracy" in row]


def best(history: Sequence[Row]) -> Best:
    """Of one trial: the best row by test accuracy (as the papers choose), the best by validation
    accuracy, if it has any, and the last."""
    return Best(
        best_by(history, "accuracy"), best_by(history, "val_accuracy"), evaluated(history)[-1]
    )


def best_by(history: Sequence[Row], score: str) -> Row | None:
    """Of one trial, the row with the highest `score`; None if none has it.

    Of "accuracy_participants" this is a maximum over rounds and over draws of participants: biased
    upwards, the more the fewer they are and the longer the run.
    """
    return max((row for row in history if score in row), key=lambda row: row[score], default=None)


def out_of_patience(history: Sequence[Row], patience: int | None) -> bool:
    """True once one trial has had `patience` evaluations without a new best (on validation where
    there is one, else test)."""
    rows = evaluated(history)
    if patience is None or not rows:
        return False
    key = "val_accuracy" if "val_accuracy" in rows[-1] else "accuracy"
    scores = [row[key] for row in rows]
    return len(scores) - 1 - int(np.argmax(scores)) >= patience


def silent(history: Sequence[Row], rounds: int | None) -> bool:
    """True once nothing has arrived in so many rounds of one trial in a row; one without
    participants is none."""
    arrived = [row["arrived"] for row in history if "arrived" in row and row.get("participants", 1)]
    return bool(rounds) and len(arrived) >= rounds and not any(arrived[-rounds:])


def is_over(history: Sequence[Row], patience: int | None, give_up: int | None) -> bool:
    """Whether one trial ends before its last round."""
    return out_of_patience(history, patience) or silent(history, give_up)


def run(
    simulation: Rounds | Simulation,
    rounds: int,
    state: SimulationState | None = None,
    history: Sequence[Row] = (),
    eval_every: int = 1,
    patience: int | None = None,
    progress_fn: Callable[[Row], None] | None = None,
    after_round: Callable[[SimulationState, list[Row]], bool] | None = None,
    only: np.ndarray | None = None,
    give_up: int | None = None,
    score_every: int = 1,
) -> tuple[SimulationState, list[Row]]:
    """Runs up to `rounds` rounds, from the start or from where `state` and `history` stand.

    Clients and servers whose results are not finite keep their old state; a RuntimeWarning names
    them, each once.

    Args:
      simulation: what to run.
      rounds: total, those already in `state` included.
      state, history: of an earlier run, to go on from; the state is copied and stays valid.
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
      TypeError: `rounds` is no whole number.

    Example:
      >>> state, history = fl.run(simulation, rounds=5)
      >>> state, history = fl.run(simulation, rounds=8, state=state, history=history)  # three more
    """
    if not isinstance(rounds, int | np.integer):
        raise TypeError(
            f"rounds is {type(rounds).__name__}; it must be a whole number: run(simulation, rounds)"
        )
    state = None if state is None else copy_state(state)
    watched = _Watch(progress_fn, simulation.trials)
    return run_rounds(
        simulation,
        rounds,
        state,
        history,
        eval_every,
        patience,
        watched,
        after_round,
        only,
        give_up,
        score_every,
    )


class _Watch:
    """Passes on the rows of a run, and warns of clients and servers that are not finite, each
    once."""

    def __init__(self, progress_fn: Callable[[Row], None] | None, trials: int | None):
        self.progress_fn, self.trials = progress_fn, trials
        self.named: set[tuple[int, str]] = set()

    def __call__(self, row: Row) -> None:
        names = [f"client {i}" for i in row.get("not_finite", ())]
        if not row.get("server_finite", True):
            names.append("the server")
        new = [name for name in names if (row["trial"], name) not in self.named]
        if new:
            self.named.update((row["trial"], name) for name in new)
            trial = f" of trial {row['trial']}" if self.trials else ""
            more = f" and {len(new) - SHOWN} more" if len(new) > SHOWN else ""
            warnings.warn(
                f"round {row['round']}{trial}: the results of {', '.join(new[:SHOWN])}{more} are "
                "not "
                "finite and were left out; simulation.find_fault(state) says where a round first "
                "goes wrong",
                RuntimeWarning,
                stacklevel=5,  # who called `run`
            )
        if self.progress_fn is not None:
            self.progress_fn(row)


def run_rounds(
    simulation: Rounds | Simulation,
    rounds: int,
    state: SimulationState | None = None,
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
    flops, done = (), 0 if state is None else state.round
    # traced before anything is compiled, so that a method's mistakes come first
    if done < rounds:
        flops = np.reshape(simulation.client_flops(), (simulation.trials or 1, -1))
    state = simulation.init() if state is None else state
    listed = (lambda x: x) if simulation.trials else (lambda x: [x])

    def add(parts: list[list[Row]], seconds: dict[str, float]) -> None:
        for trial, columns in enumerate(zip(*parts)):
            row = {"round": state.round, "trial": trial}
            for column in (*columns, seconds):
                row |= column
            if "simulated_seconds" in row:  # the clock goes on from this trial's last row
                before = history[-len(parts[0])].get("simulated_clock", 0.0)
                row["simulated_clock"] = before + row["simulated_seconds"]
            history.append(row)
            if progress_fn is not None:
                progress_fn(row)

    def evaluate() -> list[Row]:
        return [
            evaluation_row(e, simulation.rules, only)
            for e in listed(simulation.evaluate(state, only))
        ]

    if not history:
        start = time.perf_counter()
        rows = evaluate()
        add([rows], {"seconds_round": 0.0, "seconds_evaluation": time.perf_counter() - start})
    while state.round < rounds and not all(
        is_over(trial, patience, give_up) for trial in by_trial(history)
    ):
        start = time.perf_counter()
        number = state.round + 1
        state, reports = simulation.run_round(state, number % score_every == 0 or number == rounds)
        trained = time.perf_counter()
        parts = [
            [
                round_row(report, simulation.rules, own)
                for report, own in zip(listed(reports), flops)
            ]
        ]
        if state.round % eval_every == 0 or state.round == rounds:
            parts.append(evaluate())
        add(
            parts,
            {"seconds_round": trained - start, "seconds_evaluation": time.perf_counter() - trained},
        )
        if after_round is not None and after_round(state, history):
            break
    return state, history
