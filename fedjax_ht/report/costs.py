"""What each entry of a run reached, and what it took until a target: the table of a comparison."""

import csv
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.files import atomic_open
from fedjax_ht.report.table import (
    GLOBAL,
    NOTE,
    PARTICIPANTS,
    human_bytes,
    human_count,
    human_flops,
    tops_of,
)
from fedjax_ht.simulation.history import Row, best, by_trial, wire_bytes

UPLINK = "numbers in one client's uplinks"
FLOPS = "one client's FLOPs"


class Cost(NamedTuple):
    """What it took.

    Attributes:
      rounds: until the target.
      bytes, flops: what all clients together sent and received, and computed in training.
      client_elements, client_flops: of one client that takes part in every round: the numbers it
        uploads, and computes.
    """

    rounds: float
    bytes: float
    flops: float
    client_elements: float
    client_flops: float


class Aim(NamedTuple):
    """The target that the costs of a comparison are counted to: arguments of `choose_target`."""

    score: str = "accuracy"
    target: float | None = None
    share: float | None = None


class Line(NamedTuple):
    """One method.

    Attributes:
      accuracy, accuracy_std: of the best rounds on the test sets, mean and standard deviation (of
        the population) over trials.
      best_rounds: of each trial.
      participants_accuracy: mean over trials of the highest accuracy of a round's participants; NaN
        without any.
      server_accuracy: mean over trials of the best of the server's own model; NaN without one.
      reached: how many trials reached the target.
      cost: their mean cost of getting there; None without any.
      seconds_per_round, seconds: of all trials together, the median round and the whole run.
    """

    accuracy: float
    accuracy_std: float
    best_rounds: list[int]
    participants_accuracy: float
    server_accuracy: float
    reached: int
    cost: Cost | None
    seconds_per_round: float
    seconds: float


def cost_to_reach(trial: Sequence[Row], target: float, score: str = "accuracy") -> Cost | None:
    """Of one trial's rows, through the first whose score is at or above the target; None if there
    is none."""
    reached = next((row["round"] for row in trial if row.get(score, -1) >= target), None)
    if reached is None:
        return None
    spent = [row for row in trial if 0 < row["round"] <= reached]
    # A run begun before FLOPs were counted has rows without.
    flops = [row.get("flops", math.nan) for row in spent]
    uploaded = [row["uplink_payload_elements"] / max(1, row["arrived"]) for row in spent]
    computed = [f / max(1, row["participants"]) for f, row in zip(flops, spent)]
    return Cost(reached, sum(map(wire_bytes, spent)), *map(math.fsum, (flops, uploaded, computed)))


def choose_target(
    histories: Mapping[str, Sequence[Row]], score: str, target: float | None, share: float | None
) -> tuple[float, str]:
    """The accuracy to reach, and where it comes from: `target` itself, `share` of the highest that
    any trial of any method has, or without both the highest that every trial of every method
    reaches.

    Raises:
      ValueError: a method has no such score.
    """
    tops = {name: tops_of(history, score) for name, history in histories.items()}
    for name, rows in tops.items():
        if not rows:
            raise ValueError(f"--target_score is {score!r}, which {name} does not have")
    if target is not None:
        return target, "as asked"
    bests = [row[score] for rows in tops.values() for row in rows]
    if share is not None:
        return share * max(
            bests
        ), f"{share:.4g} of {100 * max(bests):.2f} %, the best of all trials"
    return min(bests), "the lowest best accuracy of all trials, which all reach"


class Table(NamedTuple):
    """label -> line, the accuracy that was aimed at, and all of it as Markdown."""

    lines: dict[str, Line]
    target: float
    text: str


def costs(
    histories: Mapping[str, Sequence[Row]],
    score: str = "accuracy",
    target: float | None = None,
    share: float | None = None,
) -> Table:
    """The comparison of a run's entries; arguments as of `choose_target`.

    Raises:
      ValueError: a method has no such score.
    """
    aim, origin = choose_target(histories, score, target, share)
    lines = {method: summarise(history, aim, score) for method, history in histories.items()}
    origin = origin if score == "accuracy" else f"{origin}, by the round's participants"
    return Table(lines, aim, markdown(lines, aim, origin))


def summarise(history: Sequence[Row], target: float, score: str = "accuracy") -> Line:
    """A method's line of the comparison."""
    trials = by_trial(history)
    tops = [best(trial).on_test for trial in trials]
    scores = [row["accuracy"] for row in tops]
    servers, drawn = tops_of(history, GLOBAL), tops_of(history, PARTICIPANTS)
    costs = [cost for trial in trials if (cost := cost_to_reach(trial, target, score)) is not None]
    return Line(
        float(np.mean(scores)),
        float(np.std(scores)),
        [row["round"] for row in tops],
        float(np.mean([row[PARTICIPANTS] for row in drawn])) if drawn else math.nan,
        float(np.mean([row[GLOBAL] for row in servers])) if servers else math.nan,
        len(costs),
        Cost(*map(float, np.mean(costs, axis=0))) if costs else None,
        float(np.median([row["seconds_round"] for row in trials[0] if row["round"] > 0])),
        math.fsum(row["seconds_round"] + row["seconds_evaluation"] for row in trials[0]),
    )


def markdown(lines: Mapping[str, Line], target: float, origin: str) -> str:
    """The table, with the target, where it comes from (`origin`), and what the columns mean."""
    aim = f"{100 * target:.2f} %"
    with_server = not all(math.isnan(line.server_accuracy) for line in lines.values())
    server = ["server's model %"] if with_server else []
    with_drawn = not all(math.isnan(line.participants_accuracy) for line in lines.values())
    columns = [
        "method",
        "accuracy %",
        *(["participants %"] if with_drawn else []),
        *server,
        "best round",
    ]
    columns += [*(f"{what} to {aim}" for what in ("rounds", "bytes", "FLOPs")), UPLINK, FLOPS]
    columns += ["s/round", "seconds"]
    rows = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, line in lines.items():
        trials = len(line.best_rounds)
        some = f" ({line.reached} of {trials} trials)" if line.reached < trials else ""
        cost, never = line.cost, ["not reached"] * 5
        cells = [
            name,
            f"{100 * line.accuracy:.2f}"
            + (f" ± {100 * line.accuracy_std:.2f}" if trials > 1 else ""),
            *(
                [f"{100 * line.participants_accuracy:.2f}".replace("nan", "-")]
                if with_drawn
                else []
            ),
            *([f"{100 * line.server_accuracy:.2f}".replace("nan", "-")] if with_server else []),
            ", ".join(map(str, line.best_rounds)),
            *(shown(cost, some) if cost else never),
            f"{line.seconds_per_round:.2f}",
            f"{line.seconds:.0f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    several = any(len(line.best_rounds) > 1 for line in lines.values())
    notes = [explanation(with_server, several)]
    if with_drawn:
        notes += ["", NOTE]
    return "\n".join([f"Target: {aim} ({origin}).", "", *rows, "", *notes])


def explanation(with_server: bool, several: bool) -> str:
    """Explains the columns, `with_server` that of the server's own model, and of `several`
    trials."""
    accuracy = "Accuracies are those of the best round on the test sets"
    costs = (
        "Bytes are those of all clients, up and down, and FLOPs those of all clients' training, "
        "through the first evaluation at or above the target"
    )
    seconds = "Seconds are the median round, and the whole run with evaluation and compilation"
    client = (
        "One client's cost is counted as FedSSA and FedRAL do: the rounds to the target times what "
        "one participant uploads (numbers of payload, one way) and computes in a round"
    )
    if several:
        accuracy += ", mean and standard deviation over trials"
        costs += ", as means over the trials that got there"
        seconds += ", of all trials together"
    if with_server:
        accuracy += "; of the server's own model, on all test samples and in its own best round"
    return textwrap.fill(f"{accuracy}. {costs}. {seconds}. {client}.", 120)


def shown(cost: Cost, some: str) -> list[str]:
    """The cells of a cost; `some` says how many trials it is of."""
    totals = [f"{cost.rounds:.4g}{some}", human_bytes(cost.bytes), human_flops(cost.flops)]
    return [*totals, human_count(cost.client_elements), human_flops(cost.client_flops)]


def write_csv(lines: Mapping[str, Line], target: float, path: Path) -> Path:
    """One row a method, shares in [0, 1]; empty where the target was not reached."""
    columns = [
        "method",
        "target",
        *(f for f in Line._fields if f != "cost"),
        *(f"{f}_to_target" for f in Cost._fields),
    ]
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for name, line in lines.items():
            fields = line._asdict() | {"best_rounds": " ".join(map(str, line.best_rounds))}
            cost = fields.pop("cost") or [""] * len(Cost._fields)
            writer.writerow([name, target, *fields.values(), *cost])
    return path
