"""Reads folders of runs and comparisons: config, settings of entries, and their scores by trial."""

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.rows import late_mean
from fedjax_ht.check.names import unknown
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import OVERRIDDEN, folder_of, recorded
from fedjax_ht.lab.report.compared import compared, shortfalls, unequal_lines
from fedjax_ht.lab.report.statistics import SCORES
from fedjax_ht.lab.runs.folder import Folder, fixed, naming, read_folder
from fedjax_ht.lab.runs.identity import identity_of
from fedjax_ht.simulation.history import best_by
from fedjax_ht.simulation.rows import Row

LATE = "late"  # the mean over the last third of the rounds
BY = (*SCORES, LATE)


class TrialScore(NamedTuple):
    """The score of one trial of an entry, in [0, 1], and its round.

    The seeds are those of the training and of the split.
    """

    seed: int
    split: int
    round: int
    score: float


def fields_of(folder: Folder) -> dict[str, Any]:
    """Returns the config of a run without its entries: "partition.options.alpha" -> 0.1."""
    return fixed(folder.fields, ())


def settings_of(folder: Folder, label: str) -> dict[str, Any]:
    """Returns an entry's settings under the names by which entries set them.

    These are method options as "mu", and fields of training and model as "training.learning_rate".
    """
    entry = folder.entries[label]
    settings = dict(entry["options"])
    for part in OVERRIDDEN:
        for name, value in folder.fields[part].items():
            settings[f"{part}.{name}"] = entry[part].get(name, value)
    return settings


def runs_of(folder: Folder, label: str) -> list[list[Row]]:
    """Returns the rows of each run of an entry so far."""
    return read_runs(folder.path / folder_of(label))


def unfinished(folder: Folder) -> list[str]:
    """Returns messages about entries that lack rounds or trials of the config."""
    config, lines = typed_config(folder.fields | {"entries": ()}), []
    for label in folder.entries:
        for reason in shortfalls(runs_of(folder, label), config):
            lines.append(f"{folder.path}: {label} {reason}")
    return lines


def unequal_rows(workdir: Path, labels: Collection[str]) -> list[str]:
    """Returns messages about why entries of a run cannot be compared, as `report.compared` does.

    An entry may be unfinished, or its folder may come from another run.

    Args:
      workdir: the run's folder.
      labels: labels of the entries.

    Raises:
      ValueError, OSError: the folder cannot be read. One line.
    """
    _, fields, noted = read_folder(workdir)
    stored = [entry for entry in fields.pop("entries") if entry["label"] in labels]
    with naming(workdir / "config.json"):
        entries = [recorded(entry) for entry in stored]
        config = typed_config(fields | {"entries": ()})
    histories = {entry.label: read_runs(workdir / entry.folder) for entry in entries}
    identities = {entry.label: identity_of(entry, config, noted) for entry in entries}
    rows = compared(config, entries, identities, histories=histories, workdir=workdir)
    return unequal_lines(rows.unequal)


def trial_scores(folder: Folder, label: str, score: str, by: str) -> list[TrialScore]:
    """Returns the score of each trial of an entry that has it.

    Args:
      folder: folder of the run.
      label: label of the entry.
      score: a key of metrics.jsonl, such as "accuracy_participants".
      by: one of `BY`, the round that counts.
    """
    scores = []
    for history in runs_of(folder, label):
        counted = chosen_score(history, score, by)
        if counted is None:
            continue
        number, partition = history[0]["trial"], folder.fields["partition"]
        split = partition["seed"] + number * partition["per_trial"]
        scores.append(TrialScore(folder.fields["seed"] + number, split, *counted))
    return scores


def chosen_score(trial: Sequence[Row], score: str, by: str) -> tuple[int, float] | None:
    """Returns the round that counts, by one of `BY`, and its score; None without such a score.

    With "late", they are the last round and the mean over the last third of the rounds.
    """
    scored = {row["round"]: row for row in trial if score in row}
    if not scored:
        return None
    if by == LATE:
        return max(scored), late_mean({number: row[score] for number, row in scored.items()})
    rows = list(scored.values())
    row = rows[-1] if by == "last" else best_by(rows, score if by == "best" else "val_accuracy")
    return None if row is None else (row["round"], row[score])


def require_score(folder: Folder, score: str) -> None:
    """Raises a one-line ValueError if no row of any entry has the score."""
    keys: dict[str, None] = {}
    for label in folder.entries:
        for row in itertools.chain(*runs_of(folder, label)):
            keys |= dict.fromkeys(row)
    if score not in keys:
        accuracies = [key for key in keys if "accuracy" in key]
        raise ValueError(f"{folder.path}: {unknown('score', score, accuracies)}")
