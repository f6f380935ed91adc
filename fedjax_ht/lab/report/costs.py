"""The comparison of a run's entries by their costs until a target accuracy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import (
    Document,
    Folded,
    Paragraph,
    Table,
    human_bytes,
    human_count,
    human_flops,
    table_of,
)
from fedjax_ht.lab.report.gains import Gains
from fedjax_ht.lab.report.results import (
    AUC,
    GLOBAL,
    MACRO_F1,
    PARTICIPANTS,
    SERVER_AUC,
    SERVER_F1,
    column_notes,
    explanation,
)
from fedjax_ht.lab.report.rows import after_start, mean, tops_of, values
from fedjax_ht.simulation.history import best, wire_bytes
from fedjax_ht.simulation.rows import History, Row, Runs

UPLINK = "numbers in one client's uplinks"
FLOPS = "one client's FLOPs"


class Cost(NamedTuple):
    """The cost of reaching a target.

    Attributes:
      rounds: rounds until the target.
      bytes, flops: bytes sent and received, and FLOPs of training, by all clients together.
      client_elements, client_flops: numbers uploaded, and FLOPs computed, by one client that takes
        part in every round.
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
    """An entry's line of a comparison.

    Attributes:
      accuracy, accuracy_std: mean and standard deviation (of the population), over trials, of the
        best rounds' accuracies on the test sets.
      macro_f1: mean over trials of the macro F1 in the best rounds; NaN where it is not known, as
        in rows of an earlier version.
      auc: mean over trials of the AUC in the best rounds; NaN where it was not asked for.
      best_rounds: the best round of each trial.
      participants_accuracy: mean over trials of the highest accuracy of a round's participants; NaN
        without any.
      server_accuracy: mean over trials of the best accuracy of the server's own model; NaN without
        one.
      server_macro_f1, server_auc: means over trials of the macro F1 and the AUC of the server's own
        model in the rounds of `server_accuracy`; NaN where they are not known.
      reached: number of trials that reached the target.
      cost: the mean cost of these trials; None without any.
      seconds_per_round, seconds: seconds of the median round and of the whole run, all trials
        together.
    """

    accuracy: float
    accuracy_std: float
    macro_f1: float
    auc: float
    best_rounds: list[int]
    participants_accuracy: float
    server_accuracy: float
    server_macro_f1: float
    server_auc: float
    reached: int
    cost: Cost | None
    seconds_per_round: float
    seconds: float


class Comparison(NamedTuple):
    """A comparison: label -> line, the target in [0, 1], and both as a text with a table."""

    lines: dict[str, Line]
    target: float
    text: Document


def cost_to_reach(history: History, target: float, score: str = "accuracy") -> Cost | None:
    """Sums the costs of a run's rounds through the first whose score is at or above the target;
    None if there is none."""
    through = rows_through(history, target, score)
    if not through:
        return None
    rounds = after_start(through)
    # A run begun before FLOPs were counted has rows without.
    flops = [row.get("flops", math.nan) for row in rounds]
    uploaded = [row["uplink_payload_elements"] / max(1, row["arrived"]) for row in rounds]
    computed = [count / max(1, row["participants"]) for count, row in zip(flops, rounds)]
    return Cost(
        rounds=through[-1]["round"],
        bytes=sum(map(wire_bytes, rounds)),
        flops=math.fsum(flops),
        client_elements=math.fsum(uploaded),
        client_flops=math.fsum(computed),
    )


def rows_through(history: History, target: float, score: str) -> History:
    """Returns a run's rows through the first whose score is at or above the target; none if the
    target is not reached."""
    for i, row in enumerate(history):
        if row.get(score, -1) >= target:
            return history[: i + 1]
    return []


def choose_target(
    histories: Mapping[str, Runs], score: str, target: float | None, share: float | None
) -> tuple[float, str]:
    """Returns the accuracy to reach, and where it comes from.

    Args:
      histories: label of an entry -> its runs.
      score: column that holds the accuracy.
      target: the accuracy itself, in (0, 1].
      share: the accuracy as a share, in (0, 1], of the highest that any trial of any entry has.
        Without both, it is the highest that every trial of every entry reaches.

    Raises:
      ValueError: an entry has no such score.
    """
    bests = []
    for label, runs in histories.items():
        tops = tops_of(runs, score)
        if not tops:
            raise ValueError(f"--target_score is {score!r}, which {label} does not have")
        bests += values(tops, score)
    if target is not None:
        return target, "as asked"
    if share is not None:
        highest = max(bests)
        return share * highest, f"{share:.4g} of {100 * highest:.2f} %, the best of all trials"
    return min(bests), "the lowest best accuracy of all trials, which all reach"


def costs(
    histories: Mapping[str, Runs],
    score: str = "accuracy",
    target: float | None = None,
    share: float | None = None,
    winner: str | None = None,
) -> Comparison:
    """Compares a run's entries; `winner` is the label of the one whose accuracy a page highlights,
    the other arguments are those of `choose_target`.

    Raises:
      ValueError: an entry has no such score.
    """
    aim, origin = choose_target(histories, score, target, share)
    lines = {label: summarise(runs, aim, score) for label, runs in histories.items()}
    if score != "accuracy":
        origin += ", by the round's participants"
    return Comparison(lines, aim, comparison_text(lines, aim, origin, winner))


def summarise(runs: Runs, target: float, score: str = "accuracy") -> Line:
    """Computes an entry's line of a comparison."""
    tops, of_server = [best(history).on_test for history in runs], tops_of(runs, GLOBAL)
    reaching = [cost_to_reach(history, target, score) for history in runs]
    costs = [cost for cost in reaching if cost is not None]
    scores, first = values(tops, "accuracy"), runs[0]  # rows have the seconds of all runs together
    return Line(
        accuracy=float(np.mean(scores)),
        accuracy_std=float(np.std(scores)),
        macro_f1=_mean_of_all(tops, MACRO_F1),
        auc=_mean_of_all(tops, AUC),
        best_rounds=values(tops, "round"),
        participants_accuracy=mean(values(tops_of(runs, PARTICIPANTS), PARTICIPANTS), math.nan),
        server_accuracy=mean(values(of_server, GLOBAL), math.nan),
        server_macro_f1=_mean_of_all(of_server, SERVER_F1),
        server_auc=_mean_of_all(of_server, SERVER_AUC),
        reached=len(costs),
        cost=Cost(*np.mean(costs, axis=0).tolist()) if costs else None,
        seconds_per_round=float(np.median(values(after_start(first), "seconds_round"))),
        seconds=math.fsum(row["seconds_round"] + row["seconds_evaluation"] for row in first),
    )


def _mean_of_all(rows: Sequence[Row], score: str) -> float:
    """Returns the mean of a score over rows; NaN unless all of them have it."""
    return mean([row.get(score, math.nan) for row in rows], math.nan)


def comparison_text(
    lines: Mapping[str, Line], target: float, origin: str, winner: str | None = None
) -> Document:
    """Writes a comparison: the target, the table, and the meaning of its columns.

    Args:
      lines: label of an entry -> its line.
      target: the accuracy that costs are counted to, in [0, 1].
      origin: words on the origin of the target.
      winner: label of the entry whose accuracy a page highlights.
    """
    aim = f"{100 * target:.2f} %"
    costs = [f"rounds to {aim}", f"bytes to {aim}", f"FLOPs to {aim}", UPLINK, FLOPS]
    titles = ["method", "accuracy %", "macro F1 %", "AUC %", "participants %"]
    titles += ["server's model %", "best round", *costs, "s/round", "seconds"]
    important = ["accuracy %", "server's model %", *costs[:3], "s/round", "best round"]
    rows = [line_cells(label, line, costs) for label, line in lines.items()]
    table = table_of(rows, titles, important, winner)
    several = any(len(line.best_rounds) > 1 for line in lines.values())
    meaning = Paragraph(explanation("server's model %" in table.head, several))
    notes = [meaning, *column_notes(table.head).values()]
    target_line = Paragraph(f"Target: {aim} ({origin}).")
    return Document([target_line, table, Folded("What the columns mean", notes)])


def line_cells(label: str, line: Line, cost_titles: Sequence[str]) -> dict[str, str]:
    """Returns the cells of a line by title; `cost_titles` are the titles of the cost's fields."""
    trials = len(line.best_rounds)
    accuracy = f"{100 * line.accuracy:.2f}"
    if trials > 1:
        accuracy += f" ± {100 * line.accuracy_std:.2f}"
    cells = {"method": label, "accuracy %": accuracy}
    if not math.isnan(line.macro_f1):
        cells["macro F1 %"] = f"{100 * line.macro_f1:.2f}"
    if not math.isnan(line.auc):
        cells["AUC %"] = f"{100 * line.auc:.2f}"
    if not math.isnan(line.participants_accuracy):
        cells["participants %"] = f"{100 * line.participants_accuracy:.2f}"
    if not math.isnan(line.server_accuracy):
        cells["server's model %"] = f"{100 * line.server_accuracy:.2f}"
    cells["best round"] = ", ".join(map(str, line.best_rounds))
    cells |= dict.fromkeys(cost_titles, "not reached")
    if line.cost is not None:
        rounds = f"{line.cost.rounds:.4g}"
        if line.reached < trials:
            rounds += f" ({line.reached} of {trials} trials)"
        shown = [
            rounds,
            human_bytes(line.cost.bytes),
            human_flops(line.cost.flops),
            human_count(line.cost.client_elements),
            human_flops(line.cost.client_flops),
        ]
        cells |= zip(cost_titles, shown)
    return cells | {"s/round": f"{line.seconds_per_round:.2f}", "seconds": f"{line.seconds:.0f}"}


def write_csv(
    lines: Mapping[str, Line],
    target: float,
    path: Path,
    *,
    gains: Mapping[str, Gains] | None = None,
) -> Path:
    """Writes a row for each entry, shares in [0, 1]; cells of a target not reached are empty.

    Args:
      lines: label of an entry -> its line.
      target: the accuracy that costs are counted to, in [0, 1].
      path: path of the CSV.
      gains: label of an entry -> its clients' gains, in columns gain_...; cells of other entries
        are empty, and without gains there are no such columns.
    """
    fields = list(Line._fields)
    fields.remove("cost")  # its own fields stand at the end
    head = ["method", "target", *fields, *(f"{field}_to_target" for field in Cost._fields)]
    if gains:
        head += [f"gain_{field}" for field in Gains._fields]
    rows = []
    for label, line in lines.items():
        cells = line._asdict() | {"best_rounds": " ".join(map(str, line.best_rounds))}
        cost = cells.pop("cost") or [""] * len(Cost._fields)
        row = [label, target, *cells.values(), *cost]
        if gains:
            row += gains.get(label, [""] * len(Gains._fields))
        rows.append(list(map(str, row)))
    with atomic_open(path) as file:
        file.write(Table(head, rows).csv())
    return path
