"""What several trials say: means with intervals, and differences between entries, paired by trial."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedjax_ht.io.files import atomic_open
from fedjax_ht.simulation.history import Row, best, by_trial

LEVEL = 0.95
RESAMPLES = 10_000
SCORES = ("best", "by_validation", "last")
Trials = dict[str, list[float]]  # entry -> a score by trial
EXPLANATION = """\
In brackets 95 % intervals: of a mean Student's, of a difference a bootstrap over trials, which are paired by seed and
split. Of three or four trials that says little more than who was ahead in how many."""


class Interval(NamedTuple):
    """A mean, and where it lies with 95 % confidence; NaN where a single value tells nothing of that."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """One entry minus another, trial by trial.

    Attributes:
      interval: of the mean difference, by bootstrap over trials.
      ahead, trials: in how many of how many trials it is above 0.
    """

    interval: Interval
    ahead: int
    trials: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def paired_difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """`values` minus `others`, both by trial: same seed, same split. The bootstrap's draws are always the same.

    With few trials an interval by bootstrap is too narrow: it holds no more than what was seen.

    Raises:
      ValueError: they are not of the same trials.
    """
    if len(values) != len(others):
        raise ValueError(f"{len(values)} and {len(others)} trials cannot be paired")
    differences = np.subtract(values, others)
    mean = float(differences.mean())
    drawn = np.random.default_rng(0).choice(differences, (RESAMPLES, len(differences))).mean(1)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(differences) > 1 else (math.nan, math.nan)
    return Difference(Interval(mean, float(low), float(high)), int((differences > 0).sum()), len(differences))


def beside_first(histories: Mapping[str, Sequence[Row]]) -> str:
    """Every entry's accuracy, and its difference to the first one's, in the best round, in the one that validation
    chooses where there is any, and in the last: a table in Markdown; "" of one entry alone."""
    if len(histories) < 2:
        return ""
    first = next(iter(histories))
    ends = {label: [best(trial) for trial in by_trial(history)] for label, history in histories.items()}
    columns, cells = ["entry"], {label: [label] for label in histories}
    rounds = {
        "best round": lambda b: b.on_test,
        "validation's round": lambda b: b.on_val,
        "last round": lambda b: b.last,
    }
    if not all(b.on_val for found in ends.values() for b in found):
        del rounds["validation's round"]
    for when, row_of in rounds.items():
        scores = {label: [100 * row_of(b)["accuracy"] for b in found] for label, found in ends.items()}
        apart = "" if when == "best round" else f", {when}"  # a terminal leaves columns out by name
        columns += [f"{when} %", f"minus {first}, points{apart}", f"ahead in{apart}"]
        for label, values in scores.items():
            cells[label].append(shown(mean_interval(values), ".2f"))
            found = paired_difference(values, scores[first])
            cells[label] += (
                ["", ""] if label == first else [shown(found.interval, "+.2f"), f"{found.ahead} of {found.trials}"]
            )
    rows = [columns, ["---"] * len(columns), *cells.values()]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", EXPLANATION])


def shown(interval: Interval, form: str) -> str:
    """80.44 (79.90 to 80.98), or the mean alone."""
    low, high = interval.low, interval.high
    return f"{interval.mean:{form}}" + ("" if math.isnan(low) else f" ({low:{form}} to {high:{form}})")


def write_trials(histories: Mapping[str, Sequence[Row]], seed: int, splits: Sequence[int], path: Path) -> Path:
    """One row an entry and trial, accuracies in [0, 1]; `splits` are the trials' seeds of their splits."""
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(["entry", "seed", "split", *SCORES, "best_round"])
        for label, history in histories.items():
            for t, trial in enumerate(by_trial(history)):
                top = best(trial)
                by_validation = top.on_val["accuracy"] if top.on_val else ""
                scores = (top.on_test["accuracy"], by_validation, top.last["accuracy"])
                writer.writerow([label, seed + t, splits[t], *scores, top.on_test["round"]])
    return path


def read_trials(path: Path, score: str) -> Trials:
    """Reads a comparison's trials.csv.

    Raises:
      ValueError: it is no such file, the score is not in it, or an entry lacks a trial. One line.
    """
    found: dict[str, dict[tuple[str, str], float]] = {}
    with path.open(newline="") as file:
        try:
            for row in csv.DictReader(file):
                found.setdefault(row["entry"], {})[row["seed"], row["split"]] = float(row[score])
        except (KeyError, ValueError):
            raise ValueError(f"{path} has no {score} of every trial; it must be trials.csv of a comparison") from None
    if len({tuple(sorted(trials)) for trials in found.values()}) != 1:
        raise ValueError(f"{path} does not have the same trials of every entry")
    return {label: [trials[key] for key in sorted(trials)] for label, trials in found.items()}


def mean_ranks(trials: Trials) -> dict[str, float]:
    """Entry -> its rank among all, mean over trials."""
    from scipy.stats import rankdata  # takes a second to import

    by_trial_ranks = rankdata(-np.array(list(trials.values())), axis=0)
    return dict(zip(trials, map(float, by_trial_ranks.mean(1))))


def ranked(settings: Mapping[str, Trials]) -> str:
    """Markdown: entries by their mean rank; of every setting the mean accuracy with its interval, and the rank.

    Raises:
      ValueError: the settings do not have the same entries.
    """
    labels = list(next(iter(settings.values())))
    for name, trials in settings.items():
        if differing := sorted(set(labels) ^ set(trials)):
            raise ValueError(f"{name} does not have the same entries as the others: {differing[0]}")
    ranks = {name: mean_ranks(trials) for name, trials in settings.items()}
    overall = {label: float(np.mean([own[label] for own in ranks.values()])) for label in labels}
    columns = ["entry", "mean rank", *(column for name in settings for column in (f"{name} %", "rank"))]
    rows = [columns, ["---"] * len(columns)]
    for label in sorted(labels, key=overall.__getitem__):
        cells = [label, f"{overall[label]:.2f}"]
        for name, trials in settings.items():
            interval = mean_interval([100 * value for value in trials[label]])
            cells += [shown(interval, ".2f"), f"{ranks[name][label]:.2f}"]
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
