"""The rows of the leaderboard: a CSV for each setting, and what its folders of runs give to it."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.rows import grouped, write_rows
from experiments.run_folders import RunFolder, read_folder, runs_of, unequal_rows
from fedjax_ht.configs.base import method_options, typed_config
from fedjax_ht.configs.sections import Config
from fedjax_ht.configs.typed import to_json
from fedjax_ht.experiment.identity import some
from fedjax_ht.experiment.json_files import flatten
from fedjax_ht.experiment.run_folder import FREE_FIELDS, NAMING
from fedjax_ht.report.results import MACRO_F1
from fedjax_ht.runner.config_files import read_config_file
from fedjax_ht.simulation.history import best_by, wire_bytes
from fedjax_ht.simulation.rows import Row, evaluated

COLUMNS = (
    "method",
    "seed",
    "split",
    "round",
    "accuracy",
    "val_accuracy",
    "macro_f1",
    "bytes",  # of all rounds so far, all clients, both ways
    "flops",  # likewise
    "public_bytes",  # of the public set, once for each client
    "correct",  # right test samples of each client, in the round that validation chooses
    "samples",  # test samples of each client, there
    "settings",  # what the search chose, there
)
FREE = frozenset(FREE_FIELDS) - {"rounds"}  # rows of one table have as many rounds


class Evaluation(NamedTuple):
    """An evaluation of a run: the round, shares in [0, 1], and costs of all rounds so far."""

    round: int
    accuracy: float
    val_accuracy: float
    macro_f1: float
    bytes: float
    flops: float


class Trial(NamedTuple):
    """A trial of a method.

    Attributes:
      seed, split: seeds of the training and of the split.
      chosen: test accuracy, in [0, 1], in the round that validation chooses.
      best: the highest test accuracy of a round.
      macro_f1: in the round that validation chooses; NaN where it is not known.
      evaluations: of all rounds that were evaluated; () where they are not known.
      correct, samples: right and all test samples of each client in the chosen round; () where they
        are not known.
      public_bytes: bytes of the public set that went to clients.
      settings: the method's settings that differ from its paper's, as text.
    """

    seed: int
    split: int
    chosen: float
    best: float
    macro_f1: float = math.nan
    evaluations: tuple[Evaluation, ...] = ()
    correct: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    public_bytes: float = 0.0
    settings: str = ""


Trials = dict[str, list[Trial]]  # method -> its trials, in order of seeds


def read_trials(path: Path) -> Trials:
    """Reads a setting's CSV: one of `COLUMNS`, or trials.csv of a comparison, which knows neither
    costs nor clients.

    Raises:
      ValueError, OSError: it is neither, or methods have other trials than the others. One line.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if reader.fieldnames is None or not {"seed", "split"} <= set(reader.fieldnames):
        raise ValueError(f"{path} has no columns seed and split; it must be a CSV of runs")
    if "entry" in reader.fieldnames:
        trials: Trials = {}
        for line in lines:
            trials.setdefault(line["entry"].partition("@")[0], []).append(plain_trial(line))
    else:
        trials = {}
        for (method, *_), rows in grouped(lines, trial_key).items():
            trials.setdefault(method, []).append(full_trial(rows))
    seeds = {tuple((trial.seed, trial.split) for trial in each) for each in trials.values()}
    if len(seeds) > 1:
        raise ValueError(f"{path} does not have the same trials of every method")
    return trials


def trial_key(line: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns by what lines of a CSV belong to one trial."""
    return line["method"], line["seed"], line["split"]


def plain_trial(line: Mapping[str, str]) -> Trial:
    """Reads a line of a comparison's trials.csv."""
    return Trial(
        seed=int(line["seed"]),
        split=int(line["split"]),
        chosen=float(line["by_validation"]),
        best=float(line["best"]),
    )


def full_trial(lines: Sequence[Mapping[str, str]]) -> Trial:
    """Reads the lines of one trial in a CSV of `COLUMNS`."""
    evaluations = []
    for line in lines:
        numbers = [float(line[name]) for name in Evaluation._fields[1:]]
        evaluations.append(Evaluation(int(line["round"]), *numbers))
    chosen = next(line for line in lines if line["samples"])
    return Trial(
        seed=int(chosen["seed"]),
        split=int(chosen["split"]),
        chosen=float(chosen["accuracy"]),
        best=max(each.accuracy for each in evaluations),
        macro_f1=float(chosen["macro_f1"]),
        evaluations=tuple(evaluations),
        correct=tuple(map(int, chosen["correct"].split())),
        samples=tuple(map(int, chosen["samples"].split())),
        public_bytes=float(lines[-1]["public_bytes"]),
        settings=chosen["settings"],
    )


def rows_of_runs(
    paths: Iterable[Path], config_name: str, points: int
) -> dict[str, list[list[Any]]]:
    """Reads the rows of folders of runs.

    Args:
      paths: of the folders.
      config_name: the setting's config, as --config names it.
      points: number of settings that each method was searched in.

    Returns:
      Method -> rows of `COLUMNS`.

    Raises:
      ValueError, OSError: a folder is of another config, is not finished, or its methods were not
        searched so. One line.
    """
    config = typed_config(read_config_file(config_name))
    rows = {}
    for path in paths:
        folder = read_folder(path)
        require_config(folder, config, config_name)
        if reasons := unequal_rows(path, folder.entries):
            raise ValueError(f"{path} has rows that cannot be compared: {some(reasons)}")
        for label, entry in folder.entries.items():
            if not str(entry["tuned"]).startswith(f"{points} settings"):
                raise ValueError(
                    f"{path}: {label} was not searched in {points} settings; run the command with "
                    f"--fair={points}"
                )
            rows[entry["method"]] = rows_of_entry(folder, label)
    return rows


def require_config(folder: RunFolder, config: Config, name: str) -> None:
    """Raises a ValueError where a run has other settings than a config; its methods, and what
    changes no number, may differ. One line."""
    ignored = tuple(f"{field}." for field in NAMING)
    expected = flatten(to_json(config))
    for field in sorted(expected | folder.config):
        if field in FREE or field in NAMING or field.startswith(ignored):
            continue
        if folder.config.get(field) != expected.get(field):
            raise ValueError(
                f"{folder.path} is no run of {name}: {field} is {folder.config.get(field)!r} there "
                f"and {expected.get(field)!r} here"
            )


def rows_of_entry(folder: RunFolder, label: str) -> list[list[Any]]:
    """Returns the rows of an entry, a row for each trial and evaluation."""
    step = int(folder.config["partition.per_trial"])
    rows = []
    for number, history in enumerate(runs_of(folder, label)):
        chosen = best_by(history, "val_accuracy")
        if chosen is None:
            raise ValueError(f"{folder.path}: {label} has no validation accuracies to choose by")
        for row in evaluated(history):
            cells = row | costs_until(history, row["round"])
            cells |= {
                "method": folder.entries[label]["method"],
                "seed": folder.config["seed"] + number,
                "split": folder.config["partition.seed"] + step * number,
                "macro_f1": row.get(MACRO_F1, math.nan),
            }
            if row is chosen:
                cells["correct"], cells["samples"] = counts_of(row)
                cells["settings"] = settings_text(folder.entries[label])
            rows.append([cells.get(column, "") for column in COLUMNS])
    return rows


def costs_until(history: Sequence[Row], last: int) -> dict[str, float]:
    """Sums bytes and FLOPs of a run's rounds up to one."""
    rows = [row for row in history if row["round"] <= last]
    return {
        "bytes": sum(map(wire_bytes, rows)),
        "flops": math.fsum(row.get("flops", 0.0) for row in rows),
        "public_bytes": sum(row.get("public_bytes", 0) for row in rows),
    }


def counts_of(row: Row) -> tuple[str, str]:
    """Returns the right and all test samples of each client, as text; clients without test samples
    are left out."""
    samples = [count for count in row["accuracy_samples"] if count]
    shares = [share for share in row["clients"] if share is not None]
    correct = [round(share * count) for share, count in zip(shares, samples, strict=True)]
    return " ".join(map(str, correct)), " ".join(map(str, samples))


def settings_text(entry: Mapping[str, Any]) -> str:
    """Returns what an entry has that its method's paper and the config have not, as an entry is
    written: "mu=0.75:training.learning_rate=0.11"."""
    settings = {}
    for name, parameter in method_options(entry["method"]).items():
        value = entry["options"].get(name)
        if value != json.loads(json.dumps(parameter.default)):
            settings[name] = value
    for part in ("training", "model"):
        settings |= {f"{part}.{name}": value for name, value in entry[part].items()}
    return ":".join(f"{name}={value}" for name, value in settings.items())


def add_runs(path: Path, rows: Mapping[str, Sequence[Sequence[Any]]]) -> None:
    """Puts rows of methods into a CSV, in place of those that it has of these methods.

    Raises:
      ValueError: the clients of a trial hold other numbers of test samples than those that the CSV
        has. One line.
    """
    kept: list[Sequence[Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        kept = [[line[name] for name in COLUMNS] for line in lines if line["method"] not in rows]
    samples = {}
    for row in [*kept, *(row for of_method in rows.values() for row in of_method)]:
        method, seed, split = row[:3]
        held = row[COLUMNS.index("samples")]
        if held and samples.setdefault((str(seed), str(split)), held) != held:
            raise ValueError(
                f"{method}, seed {seed}: its clients hold other test samples than in {path}; the "
                "data or the split are others"
            )
    added = [row for method in rows for row in rows[method]]
    write_rows(path, COLUMNS, [*kept, *added])
