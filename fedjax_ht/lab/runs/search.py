"""Searches settings by the clients' validation sets.

It trains the points of a space (`spaces`), of which the worse half stops after fewer rounds. Points
that differ only in numbers share a compiled program (a family).
"""

import dataclasses
import functools
import math
import os
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.method import varied
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.config.base import AnyConfig, typed_config
from fedjax_ht.lab.config.entries import OVERRIDDEN, only, preset, presets_of, split_spec
from fedjax_ht.lab.config.sections import Config, folder_of
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.rows import ACCURACY, Score, score_in, score_of_task, tops_of, up_to
from fedjax_ht.lab.report.statistics import seeds
from fedjax_ht.lab.runs.folder import (
    locked,
    naming,
    read_json,
    write_folder,
    write_json,
)
from fedjax_ht.lab.runs.identity import run_folder
from fedjax_ht.lab.runs.method import make_method, uplink_steps
from fedjax_ht.lab.runs.objects import with_names
from fedjax_ht.lab.runs.own_methods import noted
from fedjax_ht.lab.runs.plan import Plan, Run, plan
from fedjax_ht.lab.runs.play import Notify, lanes_of, play
from fedjax_ht.lab.runs.ray_cluster import Report
from fedjax_ht.lab.runs.signals import Interrupted, catch_signals
from fedjax_ht.lab.runs.spaces import Space, described_space, points_of, space_of
from fedjax_ht.lab.runs.tasks import Tasks, Workplace, in_place, kept
from fedjax_ht.lab.runs.train import once_started
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.rows import Runs

HALVINGS = 2  # of the points of a fair comparison, if there are enough rounds


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      best: the label of the chosen point.
      scores: number of rounds -> label -> best validation score until then, averaged over trials,
        negated if lower is better; NaN if a client or the server became non-finite, which excludes
        the point.
      score: the score.
    """

    best: str
    scores: dict[int, dict[str, float]]
    score: Score = ACCURACY


Done = Callable[[str, Runs], None]
"""Called with the label of a trained point and the rows of its trials."""
Train = Callable[[int, Mapping[str, Path], Done], None]
"""Trains points up to a number of rounds, each in the folder of its label, from its newest
checkpoint."""


def searched(
    config: Config,
    labels: Sequence[str],
    halvings: int,
    *,
    workdir: Path,
    tell: Callable[[str], None],
    tasks: Tasks | None = None,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
) -> SearchResult:
    """Searches among entries, on the config's split and seeds.

    Args:
      config: the config of the run; its `entries` are replaced.
      labels: labels of the points, as entries are written.
      halvings: number of times that the worse half of the points stops.
      workdir: the search's folder. A second call resumes the search there.
      tell: called with a message about every point.
      tasks: trains the points as tasks of a cluster; None trains them here.
      dataset, models: objects in place of names of the config; only this process has them.

    Raises:
      ValueError, OSError: the config is invalid or has no validation sets, or `workdir` is in use
        or holds another search. One line.
      Unwritable: a file cannot be written after the start. One line.
      Interrupted: a signal stopped the search.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"a search runs in one process, but there are {jax.process_count()}; start only one"
        )
    config = only(config, labels)
    at = rungs(config.rounds, halvings)
    experiment = plan(config, dataset=dataset, models=models)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose with; give them a share of each "
            "client's samples, such as --config.partition.options.val_share=0.2"
        )
    with (
        locked(workdir, tell),
        catch_signals() as caught,
        jax.default_matmul_precision(config.precision),
    ):
        folder = run_folder(experiment.config, experiment.entries, workdir, noted(experiment))
        if others := [label for label in folder.entries if label not in experiment.runs]:
            raise ValueError(
                f"{workdir} holds a search of other points, such as {others[0]}; search those as "
                "well, or choose another --workdir"
            )
        write_folder(folder)

        with once_started():
            train = trainer(experiment, workdir, tasks=tasks, tell=tell, caught=caught)
            result = _halved(list(experiment.runs), at, workdir, train=train, tell=tell)
            return result._replace(score=score_of_task(experiment.dataset.task))


def _halved(
    labels: Sequence[str],
    at: Sequence[int],
    workdir: Path,
    *,
    train: Train,
    tell: Callable[[str], None],
) -> SearchResult:
    """Trains points up to each of the rounds `at`; the better half continues.

    search.json keeps the scores, and points/ the checkpoints of points that may continue.

    Args:
      labels: the points.
      at: the rounds, see `rungs`.
      workdir: the search's folder.
      train: trains points, and calls a function with the label and runs of each.
      tell: called with a message about every point.
    """
    record, scores_at = workdir / "search.json", {}
    if record.exists():
        with naming(record):
            for rounds, scores in read_json(record).items():
                scores_at[int(rounds)] = {label: float(score) for label, score in scores.items()}
    folders = {label: workdir / "points" / folder_of(label) for label in labels}

    def done(label: str, runs: Runs) -> None:
        scores = scores_at[rounds]
        scores[label] = _score(runs, f"{label}, up to round {rounds}", tell)
        # in the order of the points, which may train in another
        scores_at[rounds] = {each: scores[each] for each in labels if each in scores}
        write_json(record, scores_at)

    while True:
        rounds, alive = standing(labels, at, scores_at)
        scores = scores_at.setdefault(rounds, {})
        left = {label: folders[label] for label in alive if label not in scores}
        if not left:
            break
        train(rounds, left, done)
        if best_first({label: scores_at[rounds][label] for label in alive}):
            # the others will not come back
            for label in set(labels) - set(alive):
                for checkpoints in folders[label].glob("checkpoints*"):
                    shutil.rmtree(checkpoints)
    order = best_first({label: scores_at[rounds][label] for label in alive})
    if not order:
        raise ValueError(
            f"in every setting of {labels[0].partition(':')[0]} a client or the server became "
            "non-finite; search lower learning rates"
        )
    # the record may have other rounds, of an earlier search
    return SearchResult(order[0], {rounds: scores_at[rounds] for rounds in at})


def standing(
    labels: Sequence[str], at: Sequence[int], scores_at: Mapping[int, Mapping[str, float]]
) -> tuple[int, list[str]]:
    """Returns the round up to which a search trains next, and its points there.

    It is the first of the rounds `at` that lacks a score of a point, or at which all points
    diverged; else the last one. After each, the better half continues. If all of them diverge
    next, as many of the others take their place, the better ones first.

    Args:
      labels: the points.
      at: the rounds, see `rungs`.
      scores_at: number of rounds -> label -> score, NaN if training diverged.
    """
    rounds, alive, stopped = at[-1], list(labels), []
    for rounds in at:
        scores = scores_at.get(rounds, {})
        while stopped and not any(math.isfinite(scores.get(label, 0)) for label in alive):
            alive, stopped = stopped[: len(alive)], stopped[len(alive) :]
        order = best_first({label: scores.get(label, 0) for label in alive})
        if rounds == at[-1] or not order or any(label not in scores for label in alive):
            break
        half = -(-len(alive) // 2)
        alive, stopped = order[:half], order[half:]
    return rounds, [label for label in labels if label in alive]


def _score(runs: Runs, place: str, tell: Callable[[str], None]) -> float:
    """Returns the mean over trials of the best validation score; NaN if training diverged.

    It is negated if lower scores are better.
    """
    diverged = divergence(runs)
    if diverged:
        tell(f"{place}: skipped, {diverged}")
        return math.nan
    score = score_in({"": runs})
    tops = tops_of(runs, f"val_{score.key}")
    value = float(np.mean([top[f"val_{score.key}"] for top in tops]))
    tell(f"{place}: {score.text(value)}{score.unit} on validation")
    return score.sign * value


def divergence(runs: Runs) -> str | None:
    """Describes where a client or the server first became non-finite; None if none did."""
    for number, history in enumerate(runs):
        for row in history:
            if clients := row.get("not_finite"):
                return f"clients {clients} not finite in round {row['round']} of trial {number}"
            if not row.get("server_finite", True):
                return f"the server not finite in round {row['round']} of trial {number}"
    return None


def rungs(rounds: int, halvings: int) -> list[int]:
    """Returns the rounds after which the worse half of the points stops; the last is all rounds.

    Raises:
      ValueError: there are too few rounds.
    """
    at = [rounds >> left for left in range(halvings, -1, -1)]
    if halvings < 0 or at[0] < 1:
        raise ValueError(
            f"--halvings is {halvings}; with {rounds} rounds it must be from 0 to "
            f"{rounds.bit_length() - 1}"
        )
    return at


def best_first(scores: Mapping[str, float]) -> list[str]:
    """Returns the labels without NaN scores, the best first. Equal scores keep their order."""
    valid = [label for label in scores if not math.isnan(scores[label])]
    return sorted(valid, key=lambda label: scores[label], reverse=True)


def rounds_planned(points: int, at: Sequence[int]) -> int:
    """Returns the rounds of all points of a search in which none diverges.

    Args:
      points: number of points at the start of the search.
      at: the rounds after which half of them stop, see `rungs`.
    """
    total, before = 0, 0
    for rounds in at:
        total += points * (rounds - before)
        points, before = -(-points // 2), rounds
    return total


def rounds_trained(scores: Mapping[int, Mapping[str, float]]) -> int:
    """Returns the rounds of all points of a search, from its scores by number of rounds."""
    at = sorted(scores)
    return sum(len(scores[rounds]) * (rounds - before) for before, rounds in zip([0, *at], at))


def table(result: SearchResult) -> str:
    """Returns a Markdown table of every point's validation score by rounds.

    The point with the best score after the most rounds comes first.
    """
    rounds, score = sorted(result.scores), result.score

    def rank(label: str) -> list[float]:
        scores = [result.scores[r].get(label, math.nan) for r in reversed(rounds)]
        return [math.inf if math.isnan(score) else -score for score in scores]

    def cell(scores: Mapping[str, float], label: str) -> str:
        if label not in scores:
            return ""
        return "not finite" if math.isnan(scores[label]) else score.text(score.sign * scores[label])

    of = "%" if score.key == "accuracy" else f"{score.name}{score.unit}"
    head = ["entry", *(f"up to round {r}, validation {of}" for r in rounds)]
    rows = []
    for label in sorted(result.scores[rounds[0]], key=rank):
        rows.append([label, *(cell(result.scores[r], label) for r in rounds)])
    return Table(head, rows).markdown()


def budget(config: Config, points: int, rounds: int) -> str:
    """Describes the cost of a search: its points, and their rounds in each trial."""
    count = config.trials if config.partition.per_trial else 1
    splits = f"{count} split{'s' * (count > 1)} of {seeds(config.partition.seed, count)}"
    return (
        f"{points} settings, {config.trials * rounds} rounds of training, by validation on "
        f"{splits}, {seeds(config.seed, config.trials)}"
    )


@checked
@standard_numerics()
def fairly_tuned(
    config: AnyConfig,
    methods: Sequence[str],
    workdir: Path | str,
    *,
    points: int = 9,
    tell: Callable[[str], None] = print,
    recipe: Space | None = None,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    tasks: Tasks | None = None,
) -> Config:
    """Tunes methods with equal budgets on validation sets; returns a config of the best settings.

    The first settings of a method are its paper's; the others are random. The search uses the first
    trial's seed and split.

        >>> config = fl.fairly_tuned(
        ...     config, ["local", "fedssa"], "runs/fair", points=9
        ... )  # doctest: +SKIP
        >>> fl.train_and_evaluate(config, "runs/fair")  # doctest: +SKIP

    Args:
      config: the config of the comparison, whose partition has validation sets.
      methods: names of the methods to tune, such as those of `register_method`.
      workdir: the comparison's folder. Its folder search/ holds the searches, which resume from
        there.
      points: number of settings of each method, at least 2.
      tell: called with a message about every setting.
      recipe: further fields of `training` to search, with their values as strings, or a
        `SearchRange`: {"training.batch_size": ("64", "512")}. All methods have the same draws.
      dataset: the data set, in place of the config's. The returned config then needs
        `make_experiment`.
      models: architecture -> module, in place of the config's.
      tasks: trains the settings as tasks of a cluster; None trains them here.

    Raises:
      ValueError, OSError: a method occurs twice, `points` is below 2, the config has no validation
        sets, or the folder has another search. One line.
      Interrupted: a signal stopped the search.
    """
    config, workdir = typed_config(config), Path(workdir)
    names = _names_of(methods)
    if points < 2:
        raise ValueError(f"a fair comparison of {points}; it needs at least 2 settings per method")
    single = dataclasses.replace(config, trials=1)
    halvings = min(HALVINGS, config.rounds.bit_length() - 1)
    spaces = {name: space_of(name, config, recipe) for name in names}
    known, named = presets_of(config.entries), with_names(config, dataset, models, None)
    tuned = []
    for method, (name, space) in zip(methods, spaces.items()):
        folder = workdir / "search" / name
        labels = points_of(method, space, points - 1)
        result = searched(
            single,
            labels,
            halvings,
            workdir=folder,
            tell=tell,
            tasks=tasks,
            dataset=dataset,
            models=models,
        )
        with once_started():
            write_whole(folder / "sweep.md", table(result) + "\n")
        tell(f"chosen: {result.best}")
        spent = budget(single, len(labels), rounds_trained(result.scores))
        origin = f"{spent}; searched: {described_space(space)}"
        tuned.append(preset(result.best, origin, known, on=named))
    config = dataclasses.replace(config, entries=(*known.values(), *tuned))
    return only(config, [entry.label for entry in tuned])


def _names_of(methods: Sequence[str]) -> list[str]:
    """Returns the method names of entries.

    Raises:
      ValueError: a method is repeated, or already tuned.
    """
    names = [split_spec(method)[0] for method in methods]
    if len(set(names)) < len(names) or any("@" in name for name in names):
        raise ValueError(
            f"methods is {','.join(methods)!r}; a fair comparison takes each method once, and "
            "tunes it itself"
        )
    return names


def trainer(
    experiment: Plan,
    workdir: Path,
    *,
    tasks: Tasks | None,
    tell: Callable[[str], None],
    caught: Sequence[int],
) -> Train:
    """Returns a function that trains some of the points, in the order of their programs.

    Args:
      experiment: the plan, with the points as its entries.
      workdir: the search's folder.
      tasks: trains the points as tasks of a cluster; None trains them here, one after another.
      tell: called with a message about every point.
      caught: numbers of caught signals; any of them stops the search once the round in progress is
        saved.
    """
    points = {run.label: run for family in families(experiment) for run in family}

    def hear(kind: str, *what: Any) -> None:
        if kind == "warn":
            tell(*what)

    def train_here(rounds: int, folders: Mapping[str, Path], done: Done) -> None:
        for label, point in points.items():
            if label in folders:
                done(label, train_point(point, rounds, folders[label], hear, caught))

    def train_far(rounds: int, folders: Mapping[str, Path], done: Done) -> None:
        pickled, calls = pickle.dumps(experiment.config), {}
        for label in filter(folders.__contains__, points):
            place = Path(os.path.abspath(folders[label]))
            calls[label] = (point_task, pickled, label, rounds, place)

        assert tasks is not None
        tasks.play(experiment, workdir, calls, notify=hear, caught=caught, done=done)
        if caught:
            raise Interrupted(caught[0])

    return train_here if tasks is None else train_far


def families(experiment: Plan) -> list[list[Run]]:
    """Returns the runs of an experiment's points by program, one family each.

    The runs of a family share one method, whose functions take the varying settings as arguments.

    Args:
      experiment: the experiment, with the points as its entries.
    """
    runs = experiment.runs
    settings = {label: _settings(run) for label, run in runs.items()}
    differing = _differing(list(settings.values()))
    alike: dict[tuple, list[str]] = {}
    for label, values in settings.items():
        varying = []
        for key in differing:
            # another model needs another program, and so does another integer
            is_number = type(values.get(key)) is float and not key.startswith("model.")
            if is_number and _may_vary(runs[label], key):
                varying.append(key)
        fixed = repr({key: value for key, value in values.items() if key not in varying})
        alike.setdefault((runs[label].entry.method, tuple(varying), fixed), []).append(label)
    result = []
    for (_, varying, _), labels in alike.items():
        first = runs[labels[0]]
        first = first._replace(options=dataclasses.replace(first.options, lanes=lanes_of(first)))
        numbers = {label: {key: settings[label][key] for key in varying} for label in labels}
        if varying:
            method = varied(functools.partial(_method_with, first), numbers[labels[0]])
            first = first._replace(method=method)
        family = []
        for label in labels:
            run = runs[label]
            values = numbers[label] or ()
            family.append(first._replace(entry=run.entry, config=run.config, settings=values))
        result.append(family)
    return result


def _settings(run: Run) -> dict[str, Any]:
    """Returns all settings of a run, named as in an entry."""
    settings = dict(run.entry.options)
    for part in OVERRIDDEN:
        for field, value in vars(getattr(run.config, part)).items():
            settings[f"{part}.{field}"] = value
    return settings


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of settings that differ between points, sorted."""
    names = set().union(*settings)
    return sorted(x for x in names if len({repr(point.get(x)) for point in settings}) > 1)


def _method_with(run: Run, values: Mapping[str, Any]) -> Any:
    """Returns a run's method with other values of some settings, which may be traced."""
    training, options = run.config.training, dict(run.entry.options)
    for key, value in values.items():
        part, _, field = key.rpartition(".")
        if part == "training":
            training = dataclasses.replace(training, **{field: value})
        else:
            options[field] = value
    codes = uplink_steps(run.config, CODES)
    return make_method(run.entry._replace(options=options), training, codes)


def _may_vary(run: Run, key: str) -> bool:
    """Returns whether a method can be built with a traced number under `key`."""

    def make(value):
        _method_with(run, {key: value})
        return value

    try:
        jax.eval_shape(make, _settings(run)[key])
    except jax.errors.ConcretizationTypeError:
        return False
    return True


def train_point(run: Run, rounds: int, folder: Path, notify: Notify, caught: Sequence[int]) -> Runs:
    """Trains a point up to a number of rounds, as `play` trains a run, and returns its rows.

    It does not end early, draws no maps, and keeps only the newest checkpoint. A point whose
    settings cannot vary within a program has a program of its own.
    """
    alone = typed_config(run.config)
    alone.update(rounds=rounds, give_up=None)
    alone.update({"evaluate.patience": None, "checkpoint.keep": 1, "report.maps": "none"})
    run = run._replace(config=alone)
    try:
        runs = play(run, folder, notify, caught)
    except jax.errors.ConcretizationTypeError:
        if not run.settings:
            raise
        notify("warn", f"{run.label} compiles its own program: a setting cannot vary within one")
        plain = run._replace(method=run.method.at(run.settings), settings=())
        runs = play(plain, folder, notify, caught)
    # its folder may have more rows, from a search with halvings at other rounds
    return up_to(runs, rounds)


def point_task(
    place: Workplace,
    config: bytes,
    label: str,
    rounds: int,
    folder: Path,
    report: Report,
) -> Runs | None:
    """Trains a point in the process of a task; returns None if it was stopped.

    See `train_point` and `tasks.train_task` for the arguments.
    """
    with in_place(place, report) as (notify, caught):
        run = kept(_built_points, config)[label]
        try:
            with jax.default_matmul_precision(run.config.precision):
                return train_point(run, rounds, folder, notify, caught)
        except Interrupted:
            return None


def _built_points(config: bytes) -> dict[str, Run]:
    """Builds the points of a pickled config."""
    every = families(plan(pickle.loads(config)))
    return {run.label: run for family in every for run in family}
