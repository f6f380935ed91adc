"""Evaluations of many runs in one CSV, their best rounds and curves; and published numbers."""

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.rows import grouped, read_lines, write_rows
from fedjax_ht.lab.report.plots import FEW, draw_accuracy, legend, rounds_evaluated, subplots
from fedjax_ht.lab.report.rows import PARTICIPANTS, Score, values
from fedjax_ht.simulation.history import best_by, wire_bytes
from fedjax_ht.simulation.rows import Row, evaluated

COLUMNS = (
    "dataset",
    "method",
    "seed",
    "round",
    "accuracy",
    "val_accuracy",
    "accuracy_std",
    "accuracy_head",
    "accuracy_own_prototype",
    "accuracy_global",
    "global_accuracy_head",
    "accuracy_train_weighted",
    "accuracy_participants",
    "best_participants",
    "best_participants_own_prototype",
    "best_participants_head",
    "best_participants_global",
    "loss",
    "classes",  # uploaded by any client, for methods that report it
    "uplink_bytes",  # of one round, all clients together
    "downlink_bytes",
)
RUN_COLUMNS = ("dataset", "method", "seed", "round")
SHOWN = {
    "accuracy": "clients",
    "accuracy_head": "own head",
    "accuracy_own_prototype": "own classes' prototypes",
    "accuracy_global": "by the global A",  # FedRAL's second rule
    "global_accuracy_head": "global model",
    PARTICIPANTS: "participants",
    f"{PARTICIPANTS}_head": "participants' own head",
    f"{PARTICIPANTS}_own_prototype": "participants' own classes' prototypes",
    f"{PARTICIPANTS}_global": "participants by the A that they were sent",
}
# DFRD's L.acc beside its G.acc
SHOWN_BESIDE_GLOBAL = {"accuracy_train_weighted": "clients by n_i"}


class Run(NamedTuple):
    """One trial of one method: its rows, and the fields of its config that may change them."""

    dataset: str
    method: str
    seed: int
    history: list[Row]
    settings: dict[str, str]


def write_evaluations(runs: Sequence[Run], path: Path) -> None:
    """Writes a row for each evaluation, which `read_evaluations` reads back.

    Bytes are those of its round; "best_participants" is the highest accuracy of a round's
    participants so far.
    """
    lines = []
    for run in runs:
        for row in evaluated(run.history):
            cells = {"dataset": run.dataset, "method": run.method, "seed": run.seed} | row
            cells |= best_so_far(run.history, row["round"])
            cells["uplink_bytes"] = wire_bytes(row, "uplink")
            cells["downlink_bytes"] = wire_bytes(row, "downlink")
            lines.append([cells.get(column, "") for column in COLUMNS])
    write_rows(path, COLUMNS, lines)


def best_so_far(history: Sequence[Row], last: int) -> dict[str, float]:
    """Returns the participants' highest accuracies up to a round, by CSV column, if any."""
    highest = {}
    rows = [row for row in history if row["round"] <= last]
    for column in COLUMNS:
        if column.startswith("best_"):
            top = best_by(rows, score_of(column))
            if top is not None:
                highest[column] = top[score_of(column)]
    return highest


def score_of(column: str) -> str:
    """Returns the score whose highest value a column "best_..." holds."""
    return column.replace("best_", "accuracy_")


def read_evaluations(path: Path) -> list[Run]:
    """Reads the runs of a file that `write_evaluations` wrote.

    Before each evaluation there is a row with the participants' best so far, as a run's history has
    rows without an evaluation.
    """
    histories = defaultdict(list)
    for cells in read_lines(path):
        history = histories[cells["dataset"], cells["method"], int(cells["seed"])]
        history += rows_from(cells)
    return [Run(*names, history, {}) for names, history in histories.items()]


def rows_from(cells: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a history that a line in a CSV of evaluations represents."""
    when = {"round": int(cells["round"])}
    row = when | {"uplink_payload_bytes": 0, "downlink_payload_bytes": 0}
    participants = dict(when)
    for column, text in cells.items():
        if column in RUN_COLUMNS or not text:
            continue
        if column.startswith("best_"):
            participants[score_of(column)] = float(text)
        elif column.endswith("_bytes"):
            row[column.replace("_bytes", "_payload_bytes")] = int(float(text))
        else:
            row[column] = float(text)
    return [row] if participants == when else [participants, row]


def read_published(path: str | None) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Reads published numbers: (dataset, method) -> CSV rows, one per source; {} without path."""
    rows = [] if path is None else read_lines(Path(path))
    return grouped(rows, operator.itemgetter("dataset", "method"))


def tops(runs: Sequence[Run], score: str, by: str | None = None) -> list[Row]:
    """Returns each run's evaluation where a score is best; runs without the score have none.

    Args:
      runs: the runs.
      score: score that the evaluation must have.
      by: score that is best there; None for `score`.
    """
    best = []
    for run in runs:
        top = best_by([row for row in run.history if score in row], by or score)
        if top is not None:
            best.append(top)
    return best


def by_method(runs: Sequence[Run], score: str) -> dict[str, list[Run]]:
    """Groups the runs that have a score by their method."""
    scored = [run for run in runs if tops([run], score)]
    return grouped(scored, operator.attrgetter("method"))


def by_dataset(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups runs by their dataset."""
    return grouped(runs, operator.attrgetter("dataset"))


def together(runs: Sequence[Run], score: str) -> list[list[Row]]:
    """Returns the rows of each run for the evaluations with the score that all runs have."""
    scored = []
    for run in runs:
        rows = [row for row in evaluated(run.history) if score in row]
        scored.append(dict(zip(values(rows, "round"), rows)))
    common = sorted(set.intersection(*map(set, scored)))
    return [[by_round[number] for number in common] for by_round in scored]


def curves(runs: Sequence[Run], score: str) -> Figure:
    """Plots a picture per dataset and a line per method: the mean over its runs.

    Bands reach from the lowest to the highest run.
    """
    methods, width = {}, 0.0
    for dataset, of_dataset in by_dataset(runs).items():
        methods[dataset] = by_method(of_dataset, score)
        # a legend beside the axes needs room
        width += 6.4 if len(methods[dataset]) <= FEW else 9.0
    figure, axes = subplots(1, len(methods), figsize=(width, 4), squeeze=False)
    for (dataset, groups), place in zip(methods.items(), axes[0]):
        of_whom = SHOWN.get(score, score)
        place.set(title=dataset, xlabel="round", ylabel=f"test accuracy, {of_whom} (%)")
        lines = {method: together(group, score) for method, group in groups.items()}
        draw_accuracy(place, lines, rounds_evaluated, Score(score))
        legend(place, len(lines))
    return figure
