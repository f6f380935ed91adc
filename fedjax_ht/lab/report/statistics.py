"""Statistics over trials: means with intervals, and differences between entries paired by trial."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import Document, Folded, Paragraph, Table
from fedjax_ht.lab.report.results import AUC, MACRO_F1
from fedjax_ht.simulation.history import best
from fedjax_ht.simulation.rows import Row, Runs

LEVEL = 0.95
RESAMPLES = 10_000
SCORES = ("best", "by_validation", "last")
Trials = dict[str, list[float]]  # entry -> a score by trial
LEAST = 4
"""Trials that an interval needs: Student's of two reaches beyond 100 %, a bootstrap's ends are the
two themselves."""
BEST = '"best" is each trial\'s best round on the test sets'
BY_VALIDATION = '"by validation" the one that is best on validation sets'
INTERVALS = (
    "In brackets 95 % intervals: of a mean Student's, of a difference a bootstrap over trials, "
    "which are paired by seed and split. Of few trials that says little more than which entry was "
    "ahead in how many."
)
VALUES = (
    "In brackets the trials, which are paired by seed and split; "
    f"fewer than {LEAST} have no interval."
)


class Interval(NamedTuple):
    """A mean, and where it lies with 95 % confidence; NaN of too few values."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """One entry minus another, trial by trial.

    Attributes:
      values: the difference of each trial.
      interval: the bootstrap interval of the mean difference, over trials.
      ahead: number of trials in which the difference is above 0.
      trials: number of all trials.
    """

    values: list[float]
    interval: Interval
    ahead: int
    trials: int


def mean_interval(values: Sequence[float], least: int = LEAST) -> Interval:
    """Computes Student's interval of a mean; `least` values or more have one."""
    mean, count = float(np.mean(values)), len(values)
    if count < least:
        return Interval(mean, math.nan, math.nan)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Subtracts a baseline trial by trial: both have the same seed and split in a trial.

    The bootstrap's draws are always the same. With few trials its interval is too narrow: it holds
    no more than what was seen.

    Raises:
      ValueError: there are more trials of one than of the other.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} trials cannot be paired")
    differences = np.subtract(values, baseline)
    low = high = math.nan
    if len(differences) >= LEAST:
        # as scipy.stats.bootstrap draws them; to import that takes longer than a report's tables
        drawn = np.random.default_rng(0).choice(differences, (RESAMPLES, len(differences))).mean(1)
        low, high = map(float, np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return Difference(
        values=differences.tolist(),
        interval=Interval(float(differences.mean()), low, high),
        ahead=int((differences > 0).sum()),
        trials=len(differences),
    )


def means_of(scores: Trials) -> dict[str, float]:
    """Returns each entry's mean over trials."""
    return {label: float(np.mean(values)) for label, values in scores.items()}


def best_scores(histories: Mapping[str, Runs]) -> Trials:
    """Returns the accuracies in percent of each entry's trials, in their best rounds."""
    scores = {}
    for label, runs in histories.items():
        scores[label] = percents([best(history).on_test for history in runs])
    return scores


def percents(rows: Sequence[Row]) -> list[float]:
    """Returns the rows' accuracies in percent."""
    return [100 * row["accuracy"] for row in rows]


def scores_by_round(histories: Mapping[str, Runs]) -> dict[str, Trials]:
    """Returns accuracies in percent of the best round, of the one that validation chooses where
    there is any, and of the last; name of the round -> entry -> trials.

    Rounds that agree in all trials of all entries are one: "best and last".
    """
    tops, chosen, lasts = {}, {}, {}
    for label, runs in histories.items():
        on_test, on_val, last = zip(*map(best, runs))
        tops[label], lasts[label] = percents(on_test), percents(last)
        if all(on_val):
            chosen[label] = percents(on_val)
    rounds = {"best": tops, "by validation": chosen, "last": lasts}
    if len(chosen) < len(histories):  # an entry has a trial without validation sets
        del rounds["by validation"]
    names: list[list[str]] = []
    distinct: list[Trials] = []
    for name, scores in rounds.items():
        if scores in distinct:
            names[distinct.index(scores)].append(name)
        else:
            names.append([name])
            distinct.append(scores)
    return {listed(equal): scores for equal, scores in zip(names, distinct)}


def listed(names: Sequence[str]) -> str:
    """Joins names as a sentence does: ["a", "b", "c"] is "a, b and c"."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def differences_to(baseline: str, histories: Mapping[str, Runs]) -> Document:
    """Makes a table of every entry's accuracy and of its difference to the baseline's, paired by
    trial, in each of the rounds of `scores_by_round`; of one entry alone an empty document."""
    if len(histories) < 2:
        return Document()
    trials = len(histories[baseline])
    head = ["entry", "round", "accuracy %", f"minus {baseline}, points", "ahead in"]
    importance = ["round", head[3], "ahead in"]
    rows = []
    rounds = scores_by_round(histories)
    for name, scores in rounds.items():
        for label, values in scores.items():
            cells = [label, name, shown(values, mean_interval(values), ".2f"), "", ""]
            if label != baseline:
                lead = paired_difference(values, scores[baseline])
                cells[3] = shown(lead.values, lead.interval, "+.2f")
                cells[4] = f"{lead.ahead} of {lead.trials}"
            rows.append(cells)
    notes = f"{BEST}."
    if any("by validation" in name for name in rounds):
        notes = f"{BEST}, {BY_VALIDATION}."
    if trials > 1:
        notes += f" {INTERVALS if trials >= LEAST else VALUES}"
    title = f"Differences to {baseline}, paired by trial"
    return Document([Folded(title, [Table(head, rows, importance), Paragraph(notes)])])


def shown(values: Sequence[float], interval: Interval, form: str) -> str:
    """Formats a mean and behind it the interval, 80.44 (79.90 to 80.98), or the trials where they
    are too few for one, 80.44 (79.86, 81.02); of one trial the mean alone."""
    mean = f"{interval.mean:{form}}"
    if not math.isnan(interval.low):
        return f"{mean} ({interval.low:{form}} to {interval.high:{form}})"
    if len(values) == 1:
        return mean
    trials = ", ".join(f"{value:{form}}" for value in values)
    return f"{mean} ({trials})"


def write_trials(
    histories: Mapping[str, Runs], seed: int, splits: Sequence[int], path: Path
) -> Path:
    """Writes a row for each entry and trial, accuracies in [0, 1], and the macro F1 and the AUC
    in the best round; empty where they are not known.

    Args:
      histories: label of an entry -> its runs.
      seed: the root seed of the first trial; each further trial has the next seed.
      splits: the trials' seeds of their splits.
      path: path of the CSV.
    """
    rows = []
    for label, runs in histories.items():
        for number, history in enumerate(runs):
            ends = best(history)
            by_validation = ends.on_val["accuracy"] if ends.on_val else ""
            scores = [ends.on_test["accuracy"], by_validation, ends.last["accuracy"]]
            place = [label, seed + number, splits[number]]
            beside = [ends.on_test.get(score, "") for score in (MACRO_F1, AUC)]
            cells = [*place, *scores, ends.on_test["round"], *beside]
            rows.append(list(map(str, cells)))
    head = ["entry", "seed", "split", *SCORES, "best_round", MACRO_F1, AUC]
    with atomic_open(path) as file:
        file.write(Table(head, rows).csv())
    return path
