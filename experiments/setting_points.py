"""Points of accuracy against one setting of a config, from folders of comparisons and CSV files.

Runs that differ in more are rejected.
"""

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.evaluations import read_evaluations
from experiments.rows import grouped, read_lines
from experiments.run_folders import chosen_score, fields_of, require_score, trial_scores
from fedjax_ht.check.names import unknown
from fedjax_ht.lab.runs.folder import FREE_BUT_ROUNDS, Folder, differing, fixed

FREE = {*FREE_BUT_ROUNDS, "seed", "partition.seed", "trials", "lanes"}
"""Fields that may differ between folders: seeds, and fields that do not affect results."""

ROUNDS = {
    "best": "best round",
    "by_validation": "by validation",
    "last": "last round",
    "late": "last third",
}
NAMED = "--setting names one as config.json has it, such as partition.options.alpha"


class Point(NamedTuple):
    """The accuracy of one trial of an entry at one value of a setting.

    Attributes:
      setting, value: the field, and its value as a string.
      entry: label of the entry.
      seed, split: seeds of the training and of the split; "" if a file lacks them.
      score, by: name of the accuracy, and the round it is from.
      accuracy: in [0, 1].
    """

    setting: str
    value: str
    entry: str
    seed: str
    split: str
    score: str
    by: str
    accuracy: float


def points_of_folders(
    folders: Sequence[Folder], settings: Sequence[str], score: str, by: str
) -> list[Point]:
    """Reads the trials of comparisons that differ in one setting.

    Args:
      folders: folders of the comparisons.
      settings: field on the axis, and fields that may differ with it.
      score, by: as for `run_folders.trial_scores`.

    Raises:
      ValueError: the folders differ in another field, or not in this one, or have no such score.
        One line.
    """
    check_settings(folders, settings)
    points = []
    for folder in folders:
        require_score(folder, score)
        value = shown(fields_of(folder)[settings[0]])
        for label in folder.entries:
            for trial in trial_scores(folder, label, score, by):
                points.append(
                    Point(
                        setting=settings[0],
                        value=value,
                        entry=label,
                        seed=str(trial.seed),
                        split=str(trial.split),
                        score=score,
                        by=by,
                        accuracy=trial.score,
                    )
                )
    return points


def check_settings(folders: Sequence[Folder], settings: Sequence[str]) -> None:
    """Raises ValueError if folders differ in a field outside `settings`, or not in the first.

    The message is one line that names the field.
    """
    axis, first = settings[0], folders[0]
    for folder in folders:
        if axis not in fields_of(folder):
            raise ValueError(f"{folder.path}: {unknown('field', axis, fields_of(folder), NAMED)}")
    for folder in folders[1:]:
        for field, (before, now) in differences(first, folder).items():
            if field not in settings:
                raise ValueError(
                    f"{first.path} and {folder.path} differ in {field}, {shown(before)} and "
                    f"{shown(now)}, and not in {axis} alone; take runs that do, or name both: "
                    f"--setting={','.join([*settings, field])}"
                )
    values = {shown(fields_of(folder)[axis]) for folder in folders}
    if len(values) < 2:
        raise ValueError(f"all of --of have {axis} {values.pop()}; name runs of several values")


def differences(first: Folder, other: Folder) -> dict[str, tuple[Any, Any]]:
    """Returns the values of the fields in which two runs differ, with those of shared entries.

    An entry's settings are named as "fedssa.mu"; entries that were tuned for each run are skipped.
    """
    before, now = compared(first, other), compared(other, first)
    return {name: (before.get(name), now.get(name)) for name in differing(before, now)}


def compared(folder: Folder, other: Folder) -> dict[str, Any]:
    """Returns a run's fields and settings that must equal another run's."""
    fields = fixed(folder.fields, FREE)
    for label in folder.entries.keys() & other.entries.keys():
        entry = folder.entries[label]
        if entry["tuned"]:  # the search may have chosen other settings for each value
            continue
        for part, prefix in (("options", ""), ("training", "training."), ("model", "model.")):
            for name, value in entry[part].items():
                fields[f"{label}.{prefix}{name}"] = value
    return fields


def points_of_file(path: Path, setting: str, value: str, *, score: str, by: str) -> list[Point]:
    """Reads the trials in a CSV file, a comparison's trials.csv or one with evaluations.

    Args:
      path: path of the file.
      setting, value: setting of the file, and its value.
      score: score, for evaluations; trials.csv has "accuracy".
      by: round that counts.

    Raises:
      ValueError: the file is of neither kind, has several data sets, or has no such score.
    """
    rows = read_lines(path)
    head = set(rows[0]) if rows else set()
    trials = []
    if {"entry", "seed", "split", by} <= head and score == "accuracy":
        trials = [row | {"accuracy": row[by]} for row in rows if row[by]]
    elif {"dataset", "method", "seed", "round"} <= head:
        trials = evaluated_trials(path, score, by)
    if not trials:
        raise ValueError(
            f"{path} has no {score} {by.replace('_', ' ')}; it must be trials.csv of a comparison "
            "or evaluations of experiments.paper_table"
        )
    points = []
    for trial in trials:
        points.append(
            Point(
                setting=setting,
                value=value,
                entry=trial["entry"],
                seed=trial["seed"],
                split=trial.get("split", ""),
                score=score,
                by=by,
                accuracy=float(trial["accuracy"]),
            )
        )
    return points


def evaluated_trials(path: Path, score: str, by: str) -> list[dict[str, str]]:
    """Reads "entry", "seed" and "accuracy" of each trial with the score, in a CSV of evaluations.

    Raises:
      ValueError: the file has several data sets. One line.
    """
    runs = read_evaluations(path)
    datasets = sorted({run.dataset for run in runs})
    if len(datasets) > 1:
        raise ValueError(f"{path} is of {' and '.join(datasets)}; one picture takes one data set")
    trials = []
    for run in runs:
        counted = chosen_score(run.history, score, by)
        if counted is not None:
            trials.append({"entry": run.method, "seed": str(run.seed), "accuracy": counted[1]})
    return trials


def refuse_repeated(points: Sequence[Point]) -> None:
    """Raises a one-line ValueError if a trial of an entry occurs twice at one value."""
    for key, same in grouped(points, operator.itemgetter(1, 2, 3, 4)).items():
        if len(same) > 1:
            value, entry, seed, _ = key
            raise ValueError(
                f"{entry} has seed {seed} twice at {points[0].setting} {value}; name each run once"
            )


def shown(value: Any) -> str:
    """Formats a field's value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value)


def ordered(values: Iterable[str]) -> list[str]:
    """Returns distinct values: numbers in order, others as they come."""
    distinct = list(dict.fromkeys(values))
    if all(map(is_number, distinct)):
        distinct.sort(key=float)
    return distinct


def is_number(text: str) -> bool:
    """Returns whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
