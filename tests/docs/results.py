"""Pages of results and the CSVs behind them, as their tests read both."""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"


def rows_of(page: str) -> list[list[str]]:
    """Reads the cells of all rows of all tables of a page."""
    lines = (RESULTS / page).read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def percents(file: str, score: str, dataset: str) -> dict[str, dict[int, dict[int, float]]]:
    """Reads method -> seed -> round -> the score in percent from a CSV of evaluations."""
    scores = defaultdict(lambda: defaultdict(dict))
    with (RESULTS / file).open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["dataset"] == dataset and row[score]:
                scores[row["method"]][int(row["seed"])][int(row["round"])] = 100 * float(row[score])
    return scores


def spread(values: list[float]) -> str:
    """Writes the mean of values, and their deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.pstdev(values):.2f}"


def best(runs: dict[int, dict[int, float]]) -> str:
    """Writes the mean of the runs' best rounds, and their deviation."""
    return spread([max(history.values()) for history in runs.values()])


def late(history: dict[int, float]) -> float:
    """Averages the evaluations in the last third of the rounds."""
    return statistics.mean(value for r, value in history.items() if 3 * r > 2 * max(history))


def differences(file: str, column: str, method: str, than: str) -> list[float]:
    """Reads a method's lead in points, trial by trial, from a CSV of trials."""
    scores = defaultdict(dict)
    with (RESULTS / file).open(newline="") as lines:
        for row in csv.DictReader(lines):
            scores[row["entry"]][row["seed"], row["split"]] = 100 * float(row[column])
    return [scores[method][trial] - value for trial, value in scores[than].items()]


def text_of(page: str) -> str:
    """Reads a page as one line."""
    return " ".join((RESULTS / page).read_text(encoding="utf-8").split())


def margins(name: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Reads a method's margins: label -> those of its clients, label -> the global one."""
    clients, server = defaultdict(list), {}
    with (RESULTS / "fedtgp_margins.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if not row["nearest"] or not row["method"].startswith(name):
                continue
            if row["client"] == "global":
                server[row["label"]] = float(row["nearest"])
            else:
                clients[row["label"]].append(float(row["nearest"]))
    return clients, server
