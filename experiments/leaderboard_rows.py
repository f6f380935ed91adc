"""Rows of the leaderboard: what runs add to a setting's CSV, and its ranks, intervals and costs."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.rows import grouped, read_lines, write_rows
from experiments.run_folders import runs_of, unequal_rows
from fedjax_ht.check.options import search_ranges
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.config.entries import BASELINE, changes, presets_of, recorded
from fedjax_ht.lab.config.sections import Config, Entry
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.report.rows import MACRO_F1
from fedjax_ht.lab.report.statistics import LEVEL, Gains, Interval, gains_of_run, mean_interval
from fedjax_ht.lab.runs.folder import FREE_BUT_ROUNDS, Folder, differing, fixed, read_folder
from fedjax_ht.lab.runs.identity import some
from fedjax_ht.methods import method_factory
from fedjax_ht.simulation.history import best_by, wire_bytes
from fedjax_ht.simulation.rows import Row, evaluated

COLUMNS = (
    "method",  # with its form: "fedtgp released"
    "seed",
    "split",
    "round",
    "accuracy",
    "val_accuracy",
    "macro_f1",
    "bytes",  # of all rounds so far, all clients, both ways
    "flops",  # likewise
    "public_bytes",  # of the public set, once for each client
    "correct",  # correct test samples per client, in the round chosen by validation
    "samples",  # test samples per client, in that round
    "settings",  # the search's choice, in that round
    "trained_accuracy",  # of clients as their training left them, as are the next two
    "trained_val_accuracy",
    "trained_correct",  # in the round chosen by trained_val_accuracy
)
RESAMPLES = 2_000
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


class Evaluation(NamedTuple):
    """An evaluation of a run: accuracy in [0, 1], and the costs of all rounds so far."""

    accuracy: float
    bytes: float
    flops: float


class Score(NamedTuple):
    """The score of one state of the clients, in the round chosen by that state's validation.

    Attributes:
      chosen: mean test accuracy, in [0, 1].
      correct: correct test samples per client.
    """

    chosen: float
    correct: tuple[int, ...]


class Trial(NamedTuple):
    """A trial of a method.

    Attributes:
      seed, split: seeds of the training and of the split.
      score: score of the state that the config scores.
      trained: score of clients as their training left them; None for a run without it.
      macro_f1: macro F1 in the round chosen by validation.
      evaluations: all evaluated rounds.
      samples: test samples per client.
      public_bytes: bytes of the public set that went to clients.
      settings: the method's settings that differ from its paper's, as a string.
    """

    seed: int
    split: int
    score: Score
    trained: Score | None
    macro_f1: float
    evaluations: tuple[Evaluation, ...]
    samples: tuple[int, ...]
    public_bytes: float = 0.0
    settings: str = ""


Trials = dict[str, list[Trial]]  # method -> its trials, in order of seeds


def read_trials(path: Path) -> Trials:
    """Reads a setting's CSV.

    Raises:
      ValueError, OSError: not all methods have the same trials. One line.
    """
    trials: Trials = {}
    by_trial = grouped(read_lines(path), itemgetter("method", "seed", "split"))
    for (method, *_), rows in by_trial.items():
        trials.setdefault(method, []).append(read_trial(rows))
    seeds = {tuple((trial.seed, trial.split) for trial in each) for each in trials.values()}
    if len(seeds) > 1:
        raise ValueError(f"{path} does not have the same trials of every method")
    return trials


def read_trial(lines: Sequence[Mapping[str, str]]) -> Trial:
    """Reads the lines of one trial."""
    evaluations = []
    for line in lines:
        evaluations.append(Evaluation(*(float(line[name]) for name in Evaluation._fields)))
    score = read_score(lines, "")
    assert score is not None  # true for every run
    (chosen,) = (line for line in lines if line["samples"])
    return Trial(
        seed=int(chosen["seed"]),
        split=int(chosen["split"]),
        score=score,
        trained=read_score(lines, "trained_"),
        macro_f1=float(chosen["macro_f1"]),
        evaluations=tuple(evaluations),
        samples=tuple(map(int, chosen["samples"].split())),
        public_bytes=float(lines[-1]["public_bytes"]),
        settings=chosen["settings"],
    )


def read_score(lines: Sequence[Mapping[str, str]], prefix: str) -> Score | None:
    """Reads a trial's score from columns that begin with `prefix`; None if there is none."""
    for line in lines:
        if correct := line[f"{prefix}correct"]:
            return Score(float(line[f"{prefix}accuracy"]), tuple(map(int, correct.split())))
    return None


def rows_of_runs(
    paths: Iterable[Path], config_name: str, *, points: int, form: str = ""
) -> dict[str, list[list[Any]]]:
    """Reads rows from folders of runs.

    Args:
      paths: paths of the folders.
      config_name: the setting's config, as --config names it, with the form.
      points: number of settings in which each method was searched.
      form: form of the methods, which becomes part of their names; "" for none.

    Returns:
      Method -> rows of `COLUMNS`.

    Raises:
      ValueError, OSError: a folder has another config, is unfinished, or its methods were not
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
            name = f"{entry['method']} {form}".strip()
            rows[name] = rows_of_entry(folder, label, name)
    return rows


def require_config(
    folder: Folder, config: Config, name: str, free: Collection[str] = FREE_BUT_ROUNDS
) -> None:
    """Raises a one-line ValueError if a run's settings differ from a config.

    Its methods, and the fields in `free`, by default those that do not affect results, may differ.
    """
    expected, found = fixed(to_json(config), free), fixed(folder.fields, free)
    if fields := differing(expected, found):
        field = fields[0]
        raise ValueError(
            f"{folder.path} is no run of {name}: {field} is {found.get(field)!r} there and "
            f"{expected.get(field)!r} here"
        )
    for label, entry in folder.entries.items():
        _require_preset(entry, presets_of(config.entries).get(entry["method"]), label, name)


def _require_preset(entry: Mapping[str, Any], preset: Entry | None, label: str, name: str) -> None:
    """Raises ValueError if an option differs that the config fixes and no search draws."""
    if preset is None:
        return
    searched = search_ranges(method_factory(preset.method))
    for option, value in changes(preset).items():
        found = entry["options"].get(option, value)
        if option not in searched and json.loads(json.dumps(value)) != found:
            raise ValueError(
                f"{label} is no run of {name}: {option} is {found!r} there and {value!r} here"
            )


def rows_of_entry(folder: Folder, label: str, name: str) -> list[list[Any]]:
    """Returns the rows of an entry, one for each trial and evaluation."""
    partition = folder.fields["partition"]
    rows = []
    for number, history in enumerate(runs_of(folder, label)):
        chosen = best_by(history, "val_accuracy")
        if chosen is None:
            raise ValueError(f"{folder.path}: {label} has no validation accuracies to choose by")
        trained = best_by(history, "trained_val_accuracy")
        for row in evaluated(history):
            cells = row | costs_until(history, row["round"])
            cells |= {
                "method": name,
                "seed": folder.fields["seed"] + number,
                "split": partition["seed"] + number * partition["per_trial"],
                "macro_f1": row.get(MACRO_F1, math.nan),
            }
            if row is chosen:
                cells["correct"], cells["samples"] = counts_of(row, "clients")
                cells["settings"] = settings_text(folder.entries[label])
            if row is trained:
                cells["trained_correct"], _ = counts_of(row, "trained_clients")
            rows.append([cells.get(column, "") for column in COLUMNS])
    return rows


def costs_until(history: Sequence[Row], last: int) -> dict[str, float]:
    """Sums bytes and FLOPs over a run's rounds up to `last`."""
    rows = [row for row in history if row["round"] <= last]
    return {
        "bytes": sum(map(wire_bytes, rows)),
        "flops": math.fsum(row.get("flops", 0.0) for row in rows),
        "public_bytes": sum(row.get("public_bytes", 0) for row in rows),
    }


def counts_of(row: Row, accuracies: str) -> tuple[str, str]:
    """Returns correct and all test samples per client, as strings; skips clients without any."""
    samples = [count for count in row["accuracy_samples"] if count]
    shares = [share for share in row[accuracies] if share is not None]
    correct = [round(share * count) for share, count in zip(shares, samples, strict=True)]
    return " ".join(map(str, correct)), " ".join(map(str, samples))


def settings_text(entry: Mapping[str, Any]) -> str:
    """Returns an entry's settings that differ from its method's paper and from the config.

    They are written as in an entry: "mu=0.75:training.learning_rate=0.11".
    """
    return ":".join(f"{name}={value}" for name, value in changes(recorded(entry)).items())


def add_runs(path: Path, rows: Mapping[str, Sequence[Sequence[Any]]]) -> None:
    """Puts rows of methods into a CSV, replacing its rows of these methods.

    Raises:
      ValueError: the clients of a trial have other numbers of test samples than in the CSV. One
        line.
    """
    kept: list[Sequence[Any]] = []
    if path.exists():
        lines = [line for line in read_lines(path) if line["method"] not in rows]
        kept = [[line[name] for name in COLUMNS] for line in lines]
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


class Cost(NamedTuple):
    """The mean cost of the trials that reach the target, and their number."""

    bytes: float
    flops: float
    reached: int


class Rank(NamedTuple):
    """A method's standing by one of its scores.

    Attributes:
      rank, low, high: rank by the mean over trials, and the ends of its interval.
      chosen: mean over trials.
      lead: mean difference from local training, with the bootstrap's interval.
      student: the same with Student's interval over trials.
      ahead: number of trials in which it is above 0.
    """

    rank: float
    low: float
    high: float
    chosen: float
    lead: Interval
    student: Interval
    ahead: int


class Standing(NamedTuple):
    """A method's row in a setting's table.

    Attributes:
      first: rank by the score of the state that the config scores.
      trained: rank by the second score, among the methods that have it; None without it.
      best: highest test accuracy of a round, mean over trials.
      macro_f1, settings, public_bytes: means over trials, as in `Trial`.
      gains: gains over clients, means over trials; None for local training itself.
      cost: cost until the target.
      trials: number of trials.
    """

    first: Rank
    trained: Rank | None
    best: float
    macro_f1: float
    gains: Gains | None
    cost: Cost
    trials: int
    settings: str
    public_bytes: float


def standings(trials: Trials) -> dict[str, Standing]:
    """Computes the rows of a setting's table, best method first.

    Raises:
      ValueError: local training is not among the methods. One line.
    """
    if BASELINE not in trials:
        raise ValueError(f"there are no trials of {BASELINE}, which all others are compared to")
    samples = [trial.samples for trial in trials[BASELINE]]
    first, trained = {}, {}
    for method, of_method in trials.items():
        first[method] = [trial.score for trial in of_method]
        second = [trial.trained for trial in of_method if trial.trained]
        if len(second) == len(of_method):
            trained[method] = second
    of_first = ranks(first, samples)
    of_trained = ranks(trained, samples) if BASELINE in trained else {}
    rows = {}
    for method in sorted(trials, key=lambda method: of_first[method].rank):
        of_method = trials[method]
        best = [max(each.accuracy for each in trial.evaluations) for trial in of_method]
        rows[method] = Standing(
            first=of_first[method],
            trained=of_trained.get(method),
            best=float(np.mean(best)),
            macro_f1=float(np.mean([trial.macro_f1 for trial in of_method])),
            gains=gains_over(of_method, trials[BASELINE]),
            cost=cost_of(of_method, trials[BASELINE]),
            trials=len(of_method),
            settings=of_method[0].settings,
            public_bytes=float(np.mean([trial.public_bytes for trial in of_method])),
        )
    return rows


def ranks(scores: Mapping[str, list[Score]], samples: list[tuple[int, ...]]) -> dict[str, Rank]:
    """Ranks methods by one of their scores; `samples` are the clients' test samples by trial."""
    # [methods, trials]: the mean over clients, as the run computed it
    chosen = np.array([[score.chosen for score in each] for each in scores.values()])
    leads = chosen - chosen[list(scores).index(BASELINE)]
    right = np.array([[score.correct for score in each] for each in scores.values()])
    drawn = resampled_means(right / np.array(samples))
    drawn_leads = drawn - drawn[:, [list(scores).index(BASELINE)]]
    of_means = ranks_of(chosen.mean(1))
    # ranks are whole numbers: the interval ends at drawn ranks
    low, high = np.quantile(ranks_of(drawn), TAILS, axis=0, method="closest_observation")
    lead_low, lead_high = np.quantile(drawn_leads, TAILS, axis=0)
    rows = {}
    for i, method in enumerate(scores):
        rows[method] = Rank(
            rank=float(of_means[i]),
            low=float(low[i]),
            high=float(high[i]),
            chosen=float(chosen[i].mean()),
            lead=Interval(float(leads[i].mean()), float(lead_low[i]), float(lead_high[i])),
            student=mean_interval(leads[i].tolist(), least=2),
            ahead=int((leads[i] > 0).sum()),
        )
    return rows


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Ranks [..., methods] along the last axis; 1 is the highest, ties share their mean rank."""
    higher = np.sum(means[..., None, :] > means[..., None], -1)
    equal = np.sum(means[..., None, :] == means[..., None], -1)
    return higher + (equal + 1) / 2


def resampled_means(accuracies: np.ndarray) -> np.ndarray:
    """Draws means of accuracies [methods, trials, clients], float [RESAMPLES, methods].

    The bootstrap has two stages: trials, and clients within each. All methods have the same draws,
    which are the same in every call.
    """
    _, num_trials, num_clients = accuracies.shape
    rng = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        which = rng.integers(num_trials, size=num_trials)
        clients = rng.integers(num_clients, size=(num_trials, num_clients))
        # [methods, trials, clients]: clients are drawn anew in each drawn trial
        means.append(accuracies[:, which[:, None], clients].mean((1, 2)))
    return np.array(means)


def gains_over(trials: list[Trial], baseline: list[Trial]) -> Gains | None:
    """Computes clients' gains over local training of the same seed and split, means over trials.

    None for local training itself.
    """
    if trials is baseline:
        return None
    gains = []
    for trial, other in zip(trials, baseline):
        samples = np.array(trial.samples)
        own, alone = (np.array(each.score.correct) / samples for each in (trial, other))
        gains.append(gains_of_run(own, alone, samples))
    return Gains(*np.mean(gains, axis=0).tolist())


def cost_of(trials: list[Trial], baseline: list[Trial]) -> Cost:
    """Computes the cost until a method reaches local training's accuracy in the same trial.

    That accuracy is from the round that validation chooses for local training.
    """
    costs = []
    for trial, other in zip(trials, baseline):
        for row in trial.evaluations:
            if row.accuracy >= other.score.chosen:
                costs.append((row.bytes, row.flops))
                break
    if not costs:
        return Cost(np.nan, np.nan, 0)
    sent, computed = np.mean(costs, axis=0).tolist()
    return Cost(sent, computed, len(costs))


def overall(ranks: Mapping[str, Mapping[str, Rank]]) -> dict[str, float]:
    """Returns the mean share of other methods that each method is ahead of, best method first.

    The mean is over the settings where it has a rank; `ranks` is setting -> method -> its rank.
    """
    shares: dict[str, list[float]] = {}
    for rows in ranks.values():
        for method, row in rows.items():
            shares.setdefault(method, []).append((len(rows) - row.rank) / (len(rows) - 1))
    means = {method: float(np.mean(values)) for method, values in shares.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
