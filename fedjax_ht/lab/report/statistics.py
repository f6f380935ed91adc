"""Statistics of entries: means over trials with intervals, and differences paired by trial.

Also the gains of single clients over local training.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.config.entries import BASELINE, method_of
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Column, Document, Paragraph, Table, columns_table
from fedjax_ht.lab.report.rows import AUC, MACRO_F1, Score, score_in
from fedjax_ht.simulation.history import best
from fedjax_ht.simulation.rows import Row, Runs, evaluated

LEVEL = 0.95
RESAMPLES = 10_000
SCORES = ("best", "by_validation", "last")
Trials = dict[str, list[float]]  # entry -> a score by trial
LEAST = 4
"""Trials that an interval needs: for two, Student's exceeds 100 %, and a bootstrap's ends are the
two values themselves."""
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
    """A mean, and its 95 % confidence interval, whose ends are NaN for too few values."""

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
      least: the mean difference below which there is no lead.
    """

    values: list[float]
    interval: Interval
    ahead: int
    trials: int
    least: float = 0.05

    @property
    def leads(self) -> bool:
        """True if one entry leads the other.

        False if the interval includes 0, or without an interval if some trial is not ahead. Also
        False if the mean difference is below `least`, which headlines show as 0.
        """
        mean, low, _ = self.interval
        return mean >= self.least and (self.ahead == self.trials if math.isnan(low) else low > 0)

    def evidence(self, score: Score) -> str:
        """Returns the trials in words: "in 5 of 6 trials (95 % interval 0.4 to 4.9)"."""
        if self.trials == 1:
            return "in one trial"
        _, low, high = self.interval
        interval = f"{self.trials} trials: no interval"
        if not math.isnan(low):
            interval = f"95 % interval {low:{score.short}} to {high:{score.short}}"
        return f"in {self.ahead} of {self.trials} trials ({interval})"


def mean_interval(values: Sequence[float], least: int = LEAST) -> Interval:
    """Computes Student's interval of a mean, for at least `least` values."""
    mean, count = float(np.mean(values)), len(values)
    if count < least:
        return Interval(mean, math.nan, math.nan)
    from scipy.special import stdtrit  # half a second, which most runs do not need

    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half)


def lead_of(values: Sequence[float], baseline: Sequence[float], score: Score) -> Difference:
    """Returns the lead of shown scores over a baseline's, trial by trial: above 0 is better."""
    ours, theirs = ([score.sign * value for value in side] for side in (values, baseline))
    return paired_difference(ours, theirs)._replace(least=0.05 if score.is_share else 1e-9)


@np.errstate(invalid="ignore")  # two diverged entries: inf - inf
def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Subtracts a baseline trial by trial; both have the same seed and split in a trial.

    The bootstrap always uses the same draws. With few trials its interval is too narrow, since it
    covers only observed values.

    Raises:
      ValueError: the numbers of trials differ.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} and {len(baseline)} trials cannot be paired")
    differences = np.subtract(values, baseline)
    low = high = math.nan
    if len(differences) >= LEAST:
        # the draws of scipy.stats.bootstrap, whose import takes longer than a report's tables
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
    """Returns the scores of each entry's trials in their best rounds; shares are in percent."""
    scores, score = {}, score_in(histories)
    for label, runs in histories.items():
        scores[label] = shown_scores([best(history).on_test for history in runs], score)
    return scores


def shown_scores(rows: Sequence[Row], score: Score) -> list[float]:
    """Returns the rows' scores as tables show them; shares are in percent."""
    return [score.factor * row[score.key] for row in rows]


def scores_by_round(histories: Mapping[str, Runs]) -> dict[str, Trials]:
    """Returns shown scores of the best round, the one that validation chooses, and the last.

    The result is name of the round -> entry -> trials, without validation if an entry lacks it.
    Rounds that agree in all trials of all entries are merged: "best and last".
    """
    tops, chosen, lasts = {}, {}, {}
    score = score_in(histories)
    for label, runs in histories.items():
        on_test, on_val, last = zip(*map(best, runs))
        tops[label], lasts[label] = shown_scores(on_test, score), shown_scores(last, score)
        if all(on_val):
            chosen[label] = shown_scores(on_val, score)
    rounds = {"best": tops, "by validation": chosen, "last": lasts}
    if len(chosen) < len(histories):  # an entry has a trial without validation sets
        del rounds["by validation"]
    merged = {}
    for scores in rounds.values():
        merged[listed([name for name, other in rounds.items() if other == scores])] = scores
    return merged


def listed(names: Sequence[str]) -> str:
    """Joins names as in a sentence: "a, b and c" for ["a", "b", "c"]."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def seeds(first: int, count: int) -> str:
    """Names consecutive seeds: "seed 1" or "seeds 1 to 3"."""
    return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"


def differences_to(baseline: str, histories: Mapping[str, Runs]) -> Document:
    """Makes a table of every entry's score and its lead over the baseline, paired by trial.

    It has rows for each of the rounds of `scores_by_round`. The document is empty for a single
    entry.
    """
    if len(histories) < 2:
        return Document()
    trials, score = len(histories[baseline]), score_in(histories)
    lead_title = f"minus {baseline}, points" if score.is_share else f"better than {baseline} by"
    head = ["entry", "round", f"{score.name}{score.unit}", lead_title, "ahead in"]
    importance = ["round", head[3], "ahead in"]
    rows = []
    rounds = scores_by_round(histories)
    for name, scores in rounds.items():
        for label, values in scores.items():
            cells = [label, name, shown(values, mean_interval(values), score.form), "", ""]
            if label != baseline:
                lead = lead_of(values, scores[baseline], score)
                cells[3] = shown(lead.values, lead.interval, f"+{score.form}")
                cells[4] = f"{lead.ahead} of {lead.trials}"
            rows.append(cells)
    notes = f"{BEST}."
    if any("by validation" in name for name in rounds):
        notes = f"{BEST}, {BY_VALIDATION}."
    if trials > 1:
        notes += f" {INTERVALS if trials >= LEAST else VALUES}"
    title = f"Differences to {baseline}, paired by trial"
    return Document([Document([Table(head, rows, importance), Paragraph(notes)], title)])


def shown(values: Sequence[float], interval: Interval, form: str) -> str:
    """Formats a mean with its interval, 80.44 (79.90 to 80.98).

    Trials that are too few for an interval are listed, 80.44 (79.86, 81.02); a single one has only
    the mean.
    """
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
    """Writes a row per entry and trial: the score, and the macro F1 and AUC in the best round.

    An accuracy is in [0, 1]; unknown cells are empty.

    Args:
      histories: label of an entry -> its runs.
      seed: the root seed of the first trial; each further trial has the next seed.
      splits: the seed of each trial's split.
      path: path of the CSV.
    """
    rows, key = [], score_in(histories).key
    for label, runs in histories.items():
        for number, history in enumerate(runs):
            ends = best(history)
            by_validation = ends.on_val[key] if ends.on_val else ""
            scores = [ends.on_test[key], by_validation, ends.last[key]]
            place = [label, seed + number, splits[number]]
            beside = [ends.on_test.get(name, "") for name in (MACRO_F1, AUC)]
            cells = [*place, *scores, ends.on_test["round"], *beside]
            rows.append(list(map(str, cells)))
    head = ["entry", "seed", "split", *SCORES, "best_round", MACRO_F1, AUC]
    write_whole(path, Table(head, rows).csv())
    return path


ERRORS = 2
"""Number of standard errors beyond which a gain or loss is more than noise."""
OVER_TRIALS = "Each column is computed within a trial, and then averaged over trials."
NOTE = (
    "A client's gain is its accuracy minus its accuracy under local training, each in the best "
    "round, on the same test samples and from the same seed. A client gains or loses if the "
    f"difference exceeds {ERRORS} standard errors, after adding one correct and one wrong "
    "prediction to each count (Agresti and Caffo, 2000). The worst tenth are the clients that lose "
    f"most. {OVER_TRIALS}"
)
NOTE_OF_SCORES = (
    "A client's gain is how far its {} is better than under local training, each in the best "
    "round, on the same test samples and from the same seed. The worst tenth are the clients that "
    f"lose most. {OVER_TRIALS}"
)
NO_BASELINE = (
    f"Whom an entry helps or hurts is not shown: no entry is {BASELINE!r}, whose clients train "
    "alone."
)


class Gains(NamedTuple):
    """A summary of clients' gains over local training, averaged over trials.

    Attributes:
      median: the median gain, for accuracies in [-1, 1]; above 0 is better.
      gaining, losing: shares of the clients that gain and that lose beyond noise; NaN if the rows
        lack the clients' numbers of test samples, as those of an earlier version.
      worst_tenth: mean over the tenth of the clients that lose most, at least one.
    """

    median: float
    gaining: float
    losing: float
    worst_tenth: float


def beyond_noise(accuracy: np.ndarray, baseline: np.ndarray, num_samples: np.ndarray) -> np.ndarray:
    """Tests which clients' accuracies differ by more than the noise of their test samples.

    It adds one correct and one wrong prediction to each count, so that clients with few test
    samples, or only correct predictions, also have a standard error. The error is that of
    independent shares. It is rather too large, since two models are right on mostly the same
    samples.

    Args:
      accuracy, baseline: float [clients], shares of the same test samples.
      num_samples: int [clients], each client's test samples.

    Returns:
      int [clients]: 1 if `accuracy` is higher beyond noise, -1 if it is lower, else 0.
    """
    shares = (np.stack([accuracy, baseline]) * num_samples + 1) / (num_samples + 2)
    errors = np.sqrt(np.sum(shares * (1 - shares), 0) / (num_samples + 2))
    differences = shares[0] - shares[1]
    return np.where(np.abs(differences) > ERRORS * errors, np.sign(differences), 0).astype(int)


def gains_of_run(
    accuracy: np.ndarray, baseline: np.ndarray, num_samples: np.ndarray | None, sign: int = 1
) -> Gains:
    """Summarises the gains of a run's clients.

    The arguments are those of `beyond_noise`, without NaN; `num_samples` is None if it is unknown.
    `sign` is -1 for scores whose lower values are better.
    """
    gains = np.sort(sign * (accuracy - baseline))
    gaining = losing = math.nan
    if num_samples is not None:
        signs = beyond_noise(accuracy, baseline, num_samples)
        gaining, losing = float(np.mean(signs > 0)), float(np.mean(signs < 0))
    return Gains(
        median=float(np.median(gains)),
        gaining=gaining,
        losing=losing,
        worst_tenth=float(gains[: max(1, len(gains) // 10)].mean()),
    )


def client_gains(histories: Mapping[str, Runs]) -> dict[str, Gains]:
    """Computes every entry's gains over the first entry of local training.

    Args:
      histories: label of an entry -> its runs.

    Returns:
      Label -> gains, for entries that have the baseline's trials and evaluated clients; {} without
      an entry of local training.
    """
    baseline = baseline_label(histories)
    if baseline is None:
        return {}
    references, score = _best_rows(histories[baseline]), score_in(histories)
    gains = {}
    for label, runs in histories.items():
        rows = _best_rows(runs)
        if label == baseline or len(rows) != len(references):
            continue
        pairs = [_paired(row, reference) for row, reference in zip(rows, references)]
        of_runs = [gains_of_run(*pair, score.sign) for pair in pairs if pair is not None]
        if of_runs and len(of_runs) == len(pairs):
            gains[label] = Gains(*np.mean(of_runs, axis=0).tolist())
    return gains


def baseline_label(labels: Mapping[str, Runs]) -> str | None:
    """Returns the label of the first entry of local training; None without one."""
    return next((label for label in labels if method_of(label) == BASELINE), None)


def _best_rows(runs: Runs) -> list[Row]:
    """Returns each run's best round; runs without an evaluation of single clients are omitted."""
    rows = [best(history).on_test for history in runs if evaluated(history)]
    return [row for row in rows if "clients" in row]


def _paired(row: Row, reference: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Returns the arguments of `gains_of_run` for the clients scored in both rows.

    None if the rows have different clients, or no scored client in common.
    """
    clients = [np.array(r["clients"], np.float64) for r in (row, reference)]  # None becomes NaN
    if row.get("client_ids") != reference.get("client_ids") or clients[0].shape != clients[1].shape:
        return None
    scored = ~np.isnan(clients).any(0)
    if not scored.any():
        return None
    num_samples = None
    if "accuracy_samples" in row:
        num_samples = np.array(row["accuracy_samples"])[scored]
    return clients[0][scored], clients[1][scored], num_samples


def gain_table(histories: Mapping[str, Runs]) -> Document:
    """Makes the table of `client_gains` with the meaning of its columns.

    Without an entry of local training, it is a line that says so. The document is empty for a
    single entry.
    """
    if len(histories) < 2:
        return Document()
    baseline = baseline_label(histories)
    if baseline is None:
        return Document([Paragraph(NO_BASELINE)])
    gains = client_gains(histories)
    if not gains:
        return Document()
    score = score_in(histories)
    points = ", points" if score.is_share else ""
    columns: dict[str, Column] = {
        "entry": lambda label, _: label,
        f"median gain over {baseline}{points}": lambda _, gain: _points(score, gain.median),
        "clients that gain %": lambda _, gain: _share(gain.gaining),
        "clients that lose %": lambda _, gain: _share(gain.losing),
        f"worst tenth{points}": lambda _, gain: _points(score, gain.worst_tenth),
    }
    note = NOTE if score.key == "accuracy" else NOTE_OF_SCORES.format(score.name)
    return Document([columns_table(columns, gains.items()), Paragraph(note)])


def _points(score: Score, value: float) -> str:
    shown = score.factor * value
    if not score.is_share:
        return f"{shown:+.4g}"
    return f"{round(shown, 2) + 0.0:+.2f}"  # + 0.0 turns -0.0 into 0.0


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f}"
