"""Evaluations of many runs in one CSV: writing and reading them, the best of each, their curves;
published numbers."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ht.core.files import atomic_open
from fedjax_ht.report import plots
from fedjax_ht.report.table import PARTICIPANTS
from fedjax_ht.simulation.history import Row, best_by, evaluated, wire_bytes

COLUMNS = (
    "dataset",
    "method",
    "seed",
    "round",
    "accuracy",
    "val_accuracy",
    "accuracy_std",
    "accuracy_head",
)
COLUMNS += (
    "accuracy_own_prototype",
    "accuracy_global",
    "global_accuracy_head",
    "accuracy_train_weighted",
)
COLUMNS += (
    "accuracy_participants",
    "best_participants",
    "best_participants_own_prototype",
    "best_participants_head",
)
COLUMNS += ("best_participants_global",)
COLUMNS += ("loss", "classes")  # the classes that somebody uploaded, of methods that tell
COLUMNS += ("uplink_bytes", "downlink_bytes")  # of one round, all clients together
SHOWN = {
    "accuracy": "clients",
    "accuracy_head": "own head",
    "accuracy_own_prototype": "own classes' prototypes",
}
SHOWN |= {"accuracy_global": "by the global A"}  # FedRAL's second rule
SHOWN |= {"global_accuracy_head": "global model", PARTICIPANTS: "participants"}
SHOWN |= {f"{PARTICIPANTS}_head": "participants' own head"}
SHOWN |= {f"{PARTICIPANTS}_own_prototype": "participants' own classes' prototypes"}
SHOWN |= {f"{PARTICIPANTS}_global": "participants by the A that they were sent"}
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
    """One row an evaluation; bytes are those of the round before it, "best_participants" is the
    highest accuracy of a round's participants so far. `read_evaluations` reads them back."""
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for run in runs:
            for row in evaluated(run.history):
                values = {"dataset": run.dataset, "method": run.method, "seed": run.seed} | row
                for key in (column for column in COLUMNS if column.startswith("best_")):
                    score = key.replace("best_", "accuracy_")
                    drawn = [
                        r[score] for r in run.history if score in r and r["round"] <= row["round"]
                    ]
                    values |= {key: max(drawn)} if drawn else {}
                values |= {f"{way}_bytes": wire_bytes(row, way) for way in ("uplink", "downlink")}
                cells = (values.get(column, "") for column in COLUMNS)
                writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in cells])


def read_evaluations(path: Path) -> list[Run]:
    """The runs of a file that `write_evaluations` wrote: what was evaluated, and before each
    evaluation a row with the participants' best until then, as a run's history has rows without an
    evaluation."""
    histories = defaultdict(list)
    with path.open(newline="") as file:
        for cells in csv.DictReader(file):
            row = {
                key: float(x)
                for key, x in cells.items()
                if x and key not in ("dataset", "method", "seed", "round")
            }
            drawn = {
                key.replace("best_", "accuracy_"): row.pop(key)
                for key in list(row)
                if key.startswith("best_")
            }
            row |= {
                f"{way}_payload_bytes": int(row.pop(f"{way}_bytes", 0))
                for way in ("uplink", "downlink")
            }
            when = {"round": int(cells["round"]), "trial": 0}
            history = histories[cells["dataset"], cells["method"], int(cells["seed"])]
            history += [when | drawn, when | row] if drawn else [when | row]
    return [Run(*names, history, {}) for names, history in histories.items()]


def read_published(path: str | None) -> dict[tuple[str, str], list[dict[str, str]]]:
    """(dataset, method) -> the CSV's rows, one a source; nothing for no path."""
    found = defaultdict(list)
    if path is None:
        return found
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            found[row["dataset"], row["method"]].append(row)
    return found


def tops(runs: Sequence[Run], score: str, by: str | None = None) -> list[Row]:
    """Of each run that has this score, the evaluation where it (or another, `by`) is best."""
    rows = (best_by([row for row in run.history if score in row], by or score) for run in runs)
    return [row for row in rows if row is not None]


def by_method(runs: Sequence[Run], score: str) -> dict[str, list[Run]]:
    """Those of the runs that have this score, by their method."""
    grouped = defaultdict(list)
    for run in runs:
        if tops([run], score):
            grouped[run.method].append(run)
    return grouped


def together(runs: Sequence[Run], score: str) -> list[Row]:
    """Runs as trials of one history, with the evaluations that all of them have and that have the
    score."""
    scored = [{row["round"]: row for row in evaluated(run.history) if score in row} for run in runs]
    common = sorted(set.intersection(*map(set, scored)))
    return [rows[number] | {"trial": i} for i, rows in enumerate(scored) for number in common]


def curves(runs: Sequence[Run], score: str) -> plots.Figure:
    """One picture a dataset, one line a method: the mean over its runs, and a band from the lowest
    to the highest."""
    datasets = dict.fromkeys(run.dataset for run in runs)
    grouped = {
        dataset: by_method([run for run in runs if run.dataset == dataset], score)
        for dataset in datasets
    }
    # a legend beside needs room
    width = sum(6.4 if len(groups) <= plots.FEW else 9.0 for groups in grouped.values())
    figure, axes = plots.subplots(1, len(grouped), figsize=(width, 4), squeeze=False)
    for (dataset, groups), place in zip(grouped.items(), axes[0]):
        place.set(title=dataset, xlabel="round", ylabel=f"{SHOWN.get(score, score)} (%)")
        lines = {method: together(group, score) for method, group in groups.items()}
        plots.draw_accuracy(
            place, lines, lambda trial: [row["round"] for row in evaluated(trial)], score
        )
        plots.legend(place, len(lines))
    return figure
