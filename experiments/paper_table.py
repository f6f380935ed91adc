"""Many runs in one table, beside published numbers.

    python -m experiments.paper_table --runs=FOLDER --published=CSV --out=STEM

Every run below --runs that has a config.json and a method's metrics.jsonl counts; runs of one dataset and method that
differ in their seed are pooled. Writes STEM.csv, the evaluations of every run, and STEM_table.md. The published CSV has
the columns dataset, method, accuracy (in %, empty where a paper says that it did not converge) and source.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags

from experiments.cli import fail, parse_flags
from experiments.table import human_bytes, percent
from fedjax_ht.core.history import Row, best, by_trial, evaluated, wire_bytes
from fedjax_ht.io.files import atomic_open

_RUNS = flags.DEFINE_string("runs", None, "Folder with runs, at any depth.")
_PUBLISHED = flags.DEFINE_string("published", None, "CSV of the published numbers.")
_OUT = flags.DEFINE_string("out", None, "Where to write, without an ending.")

COLUMNS = ("dataset", "method", "seed", "round", "accuracy", "val_accuracy", "accuracy_std", "accuracy_head", "loss")
COLUMNS += ("uplink_bytes", "downlink_bytes")  # of one round, all clients together


class Run(NamedTuple):
    """One trial of one method: its rows."""

    dataset: str
    method: str
    seed: int
    history: list[Row]


def find_runs(folder: Path) -> Iterator[Run]:
    """Every trial below a folder, in order of their paths."""
    for path in sorted(folder.rglob("metrics.jsonl")):
        config = json.loads((path.parent.parent / "config.json").read_text())
        with path.open() as file:
            history = [json.loads(line) for line in file]
        for trial in by_trial(history):
            seed = config["seed"] + trial[0]["trial"]
            yield Run(config["dataset"]["name"], path.parent.name, seed, trial)


def write_evaluations(runs: Sequence[Run], path: Path) -> None:
    """One row an evaluation; bytes are those of the round before it."""
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for run in runs:
            for row in evaluated(run.history):
                values = {"dataset": run.dataset, "method": run.method, "seed": run.seed} | row
                values |= {f"{way}_bytes": wire_bytes(row, way) for way in ("uplink", "downlink")}
                cells = (values.get(column, "") for column in COLUMNS)
                writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in cells])


def read_published(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """(dataset, method) -> the CSV's rows, one a source."""
    found = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["dataset"], row["method"]].append(row)
    return found


def line(runs: Sequence[Run], published: Sequence[dict[str, str]]) -> list[str]:
    """The cells of one method on one dataset."""
    trials = [best(run.history) for run in runs]
    tops, by_val = [b.on_test for b in trials], [b.on_val for b in trials if b.on_val is not None]
    heads = [
        max((row["accuracy_head"] for row in evaluated(r.history) if "accuracy_head" in row), default=0) for r in runs
    ]
    spent = [row for run in runs for row in run.history if row["round"] > 0]
    ours = 100 * float(np.mean([row["accuracy"] for row in tops]))
    numbers = [row["accuracy"] or "no convergence" for row in published]
    known = [float(row["accuracy"]) for row in published if row["accuracy"]]
    head = 100 * float(np.mean(heads))
    return [
        runs[0].method,
        percent(tops, "accuracy"),
        percent(by_val, "accuracy") if by_val else "-",
        f"{head:.2f}" if head and abs(head - ours) > 1e-6 else "",
        ", ".join(str(row["round"]) for row in tops),
        str(len(runs)),
        ", ".join(dict.fromkeys(numbers)) or "-",
        f"{ours - known[0]:+.2f}" if known else "",
        human_bytes(np.mean([wire_bytes(row) for row in spent])) if spent else "-",
    ]


def markdown(runs: Sequence[Run], published: dict[tuple[str, str], list[dict[str, str]]]) -> str:
    """A table a dataset, methods by falling accuracy."""
    parts = []
    head = ("method", "ours %", "by validation %", "own head %", "best round", "seeds", "paper %", "difference")
    head += ("bytes a round",)
    for dataset in dict.fromkeys(run.dataset for run in runs):
        grouped = defaultdict(list)
        for run in runs:
            if run.dataset == dataset:
                grouped[run.method].append(run)
        lines = [line(group, published.get((dataset, method), [])) for method, group in grouped.items()]
        lines.sort(key=lambda cells: -float(cells[1].split()[0]))
        table = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]
        parts.append("\n".join([f"## {dataset}", "", *table]))
    return "\n\n".join(parts)


def main(_) -> None:
    for name, value in (("runs", _RUNS.value), ("published", _PUBLISHED.value), ("out", _OUT.value)):
        if not value:
            fail(ValueError(f"no --{name}; see --help"))
    try:
        runs, published = list(find_runs(Path(_RUNS.value))), read_published(Path(_PUBLISHED.value))
    except FileNotFoundError as error:
        fail(error)
    if not runs:
        fail(ValueError(f"no run below {_RUNS.value}"))
    out = Path(_OUT.value)
    write_evaluations(runs, out.with_suffix(".csv"))
    text = markdown(runs, published)
    with atomic_open(out.with_name(out.name + "_table.md")) as file:
        file.write(text + "\n")
    print(text)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
