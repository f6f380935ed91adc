"""Searches settings by the clients' validation sets: points are trained, and the worse half of them
ends after fewer rounds.

Points that differ in numbers alone share a compiled program (a family).
"""

import dataclasses
import functools
import json
import logging
import math
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.method import varied
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.checkpoints.checkpoint import TrialCheckpoints
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.config.base import AnyConfig, typed_config
from fedjax_ht.lab.config.entries import OVERRIDDEN, only, preset, presets_of, split_spec
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.folder import remember_config
from fedjax_ht.lab.runs.identity import noted
from fedjax_ht.lab.runs.method import make_method
from fedjax_ht.lab.runs.options import evaluated_clients, uplink_steps
from fedjax_ht.lab.runs.plan import Plan, Run, plan
from fedjax_ht.lab.runs.play import Listeners, lanes_of, simulate_trials
from fedjax_ht.lab.runs.run_lock import locked
from fedjax_ht.lab.runs.search_space import (
    Space,
    check_recipe,
    described_space,
    points_of,
    space_of,
)
from fedjax_ht.lab.runs.signals import Interrupted, catch_signals
from fedjax_ht.lab.runs.tasks import Report, Tasks, Workplace, in_place, kept
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.rows import Runs
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState

_LOGGER = logging.getLogger(__name__)

SCORE = "val_accuracy"
HALVINGS = 2  # of the points of a fair comparison, where there are rounds enough


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      best: the label of the chosen point.
      scores: number of rounds -> label -> best validation accuracy until then, mean over trials;
        NaN where a client or the server stopped being finite, which excludes the point.
    """

    best: str
    scores: dict[int, dict[str, float]]


class Step(NamedTuple):
    """A point to be trained up to a number of rounds.

    Attributes:
      label: label of the point.
      rounds: number of rounds.
      folder: the folder to train in.
      before: the folder where the point was trained for fewer rounds, if it was.
    """

    label: str
    rounds: int
    folder: Path
    before: Path | None


class UntraceableSetting(Exception):
    """A setting cannot vary within a program."""


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
      halvings: number of times that the worse half of the points ends.
      workdir: the search's folder. A second call resumes what is in it.
      tell: called with a line about every point.
      tasks: trains the points as tasks of a cluster; None trains them here.
      dataset, models: objects in place of names of the config; only this process has them.

    Raises:
      ValueError, OSError: the config is wrong or has no validation sets, or `workdir` is in use or
        of another search. One line.
      Interrupted: by a signal.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"a search runs in one process, and there are {jax.process_count()}; start one alone"
        )
    config = only(config, labels)
    at = rungs(config.rounds, halvings)
    experiment = plan(config, dataset=dataset, models=models)
    if not any(len(client.val) for client in experiment.partitions[0]):
        raise ValueError(
            "the clients have no validation sets to choose by; give them a share of each client's "
            "samples, such as --config.partition.options.val_share=0.2"
        )
    with (
        locked(workdir, tell),
        catch_signals() as caught,
        jax.default_matmul_precision(config.precision),
    ):
        remember_config(experiment.config, experiment.entries, workdir, noted(experiment))

        def search(trace: bool) -> SearchResult:
            points = points_by_program(experiment, trace)
            train = functools.partial(_train_here, points=points, caught=caught)
            if tasks is not None:
                train = functools.partial(
                    _train_on,
                    play=functools.partial(tasks.play, experiment, workdir),
                    config=experiment.config,
                    trace=trace,
                    tell=tell,
                    caught=caught,
                )
            return _halved(list(experiment.runs), list(points), at, workdir, train=train, tell=tell)

        try:
            return search(trace=True)
        except (jax.errors.ConcretizationTypeError, UntraceableSetting):
            tell("a setting cannot vary within a program, so that every point compiles its own")
            return search(trace=False)


def _halved(
    labels: Sequence[str],
    order: Sequence[str],
    at: Sequence[int],
    workdir: Path,
    *,
    train: Callable[[Sequence[Step], Callable[[str, Runs], None]], None],
    tell: Callable[[str], None],
) -> SearchResult:
    """Trains points up to each of the rounds `at`; the better half continues.

    Scores are kept in search.json, and checkpoints of points that may continue below points/.

    Args:
      labels: the points.
      order: the points in the order of training.
      at: the rounds, see `rungs`.
      workdir: the search's folder.
      train: (steps, done): trains points, and calls `done` with the label and runs of each.
      tell: called with a line about every point.
    """
    record, scores_at = workdir / "search.json", {}
    if record.exists():
        content = json.loads(record.read_text())
        scores_at = {int(rounds): scores for rounds, scores in content.items()}
    alive, places = list(labels), {}
    for rounds in at:
        scores = scores_at.setdefault(rounds, {})
        steps = []
        for number, label in enumerate(label for label in order if label in alive):
            folder = workdir / "points" / f"{rounds:05d}" / f"{number:03d}"
            steps.append(Step(label, rounds, folder, places.get(label)))

        def done(label: str, runs: Runs, rounds: int = rounds, steps: list[Step] = steps) -> None:
            scores = scores_at[rounds] | {
                label: _score(runs, f"{label}, up to round {rounds}", tell)
            }
            # in an order that does not depend on which was trained first
            scores_at[rounds] = {s.label: scores[s.label] for s in steps if s.label in scores}
            with atomic_open(record) as file:
                json.dump(scores_at, file, indent=2)

        train([step for step in steps if step.label not in scores], done)
        scores = scores_at[rounds]
        for folder in places.values():  # all points have continued or ended
            for checkpoints in folder.glob("checkpoints*"):
                shutil.rmtree(checkpoints)
        places = {step.label: step.folder for step in steps}
        if all(math.isnan(scores[label]) for label in alive):
            raise ValueError(
                f"in every setting of {alive[0].partition(':')[0]} a client or the server stopped "
                "being finite; search lower learning rates"
            )
        if rounds != at[-1]:
            alive = better_half({label: scores[label] for label in alive})
    last = {label: scores_at[at[-1]][label] for label in alive}
    return SearchResult(max(better_half(last), key=last.__getitem__), scores_at)


def _score(runs: Runs, place: str, tell: Callable[[str], None]) -> float:
    """Returns the mean over trials of the best validation accuracy; NaN where training diverged."""
    diverged = divergence(runs)
    if diverged:
        tell(f"{place}: left out, {diverged}")
        return math.nan
    score = float(np.mean([max(row[SCORE] for row in run if SCORE in row) for run in runs]))
    tell(f"{place}: {100 * score:.2f} % on validation")
    return score


def divergence(runs: Runs) -> str | None:
    """Returns where a client or the server first stopped being finite; None where all stayed so."""
    for number, history in enumerate(runs):
        for row in history:
            if clients := row.get("not_finite"):
                return f"clients {clients} not finite in round {row['round']} of trial {number}"
            if not row.get("server_finite", True):
                return f"the server not finite in round {row['round']} of trial {number}"
    return None


def rungs(rounds: int, halvings: int) -> list[int]:
    """Returns the rounds after which the worse half of the points ends; the last are all rounds.

    Raises:
      ValueError: there are not so many rounds.
    """
    at = [rounds >> left for left in range(halvings, -1, -1)]
    if halvings < 0 or at[0] < 1:
        raise ValueError(
            f"--halvings is {halvings}; with {rounds} rounds it must be from 0 to "
            f"{rounds.bit_length() - 1}"
        )
    return at


def better_half(scores: Mapping[str, float]) -> list[str]:
    """Returns the labels that go on, in the order in which they came: at most half of them, rounded
    up, and none whose score is not a number. Of equal scores the first is the better."""
    valid = [label for label in scores if not math.isnan(scores[label])]
    order = sorted(valid, key=lambda label: scores[label], reverse=True)
    chosen = set(order[: -(-len(scores) // 2)])
    return [label for label in scores if label in chosen]


def rounds_trained(points: int, at: Sequence[int]) -> int:
    """Returns the cost of a search in rounds of one point.

    Args:
      points: number of points that the search begins with.
      at: the rounds after which half of them end, see `rungs`.
    """
    total, before = 0, 0
    for rounds in at:
        total += points * (rounds - before)
        points, before = -(-points // 2), rounds
    return total


def points_by_program(experiment: Plan, trace: bool = True) -> dict[str, Run]:
    """Returns label -> run of an experiment's points, one family after another.

    The arms of a family have one method, whose varying settings are arguments of its functions.

    Args:
      experiment: the experiment, with the points as its entries.
      trace: False compiles each point for itself.
    """
    points = {}
    for family in families(experiment, trace):
        points |= {run.label: run for run in family}
    return points


def families(experiment: Plan, trace: bool = True) -> list[list[Run]]:
    """Returns the arms of `points_by_program`, grouped by program."""
    arms = experiment.runs
    settings = {label: _settings(run) for label, run in arms.items()}
    differing = _differing(list(settings.values()))
    alike: dict[tuple, list[str]] = {}
    for label, values in settings.items():
        varying = []
        for key in differing:
            # another model is another program, and so is another integer
            is_number = type(values.get(key)) is float and not key.startswith("model.")
            if trace and is_number and _may_vary(arms[label], key):
                varying.append(key)
        fixed = repr({key: value for key, value in values.items() if key not in varying})
        alike.setdefault((arms[label].entry.method, tuple(varying), fixed), []).append(label)
    result = []
    for (_, varying, _), labels in alike.items():
        first = arms[labels[0]]
        first = first._replace(options=dataclasses.replace(first.options, lanes=lanes_of(first)))
        numbers = {label: {key: settings[label][key] for key in varying} for label in labels}
        if varying:
            method = varied(functools.partial(_method_with, first), numbers[labels[0]])
            first = first._replace(method=method)
        family = []
        for label in labels:
            run = arms[label]
            values = numbers[label] or ()
            family.append(first._replace(entry=run.entry, config=run.config, settings=values))
        result.append(family)
    return result


def _settings(run: Run) -> dict[str, Any]:
    """Returns all settings of a run, under the names that an entry sets."""
    settings = dict(run.entry.options)
    for part in OVERRIDDEN:
        for field, value in vars(getattr(run.config, part)).items():
            settings[f"{part}.{field}"] = value
    return settings


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of which not all points have the same value, sorted."""
    values: dict[str, set[str]] = {}
    for point in settings:
        for key in point:
            values[key] = {repr(other.get(key)) for other in settings}
    return sorted(key for key in values if len(values[key]) > 1)


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
    """Returns True where a method can be made without knowing the number under `key`."""

    def make(value):
        _method_with(run, {key: value})
        return value

    try:
        jax.eval_shape(make, _settings(run)[key])
    except jax.errors.ConcretizationTypeError:
        return False
    return True


def _train_here(
    steps: Sequence[Step],
    done: Callable[[str, Runs], None],
    *,
    points: Mapping[str, Run],
    caught: Sequence[int],
) -> None:
    """Trains points one after another in this process."""
    beside: list[Simulation] = []
    for step in steps:
        done(step.label, train_point(points[step.label], step, beside, caught))


def train_point(
    run: Run,
    step: Step,
    beside: list[Simulation],
    caught: Sequence[int],
    *,
    look: Callable[[], None] = lambda: None,
) -> Runs:
    """Trains a point from its newest checkpoint, or from that of fewer rounds; returns its rows.

    Args:
      run: the point.
      step: the rounds and folders.
      beside: a simulation, whose samples on the devices are taken; added here where there is none.
      caught: numbers of signals; one in it stops the search when the round in progress is saved.
      look: called after each round, to see whether the search is to stop.
    """
    config = run.config
    simulations = simulate_trials(run, beside=beside[0] if beside else None)
    beside.extend(simulations[: 1 - len(beside)])
    checkpoints = _checkpoints(step.folder, simulations)
    states, histories = checkpoints.restore(_LOGGER.warning)
    if step.before is not None and not any(histories):
        states, histories = _checkpoints(step.before, simulations).restore(_LOGGER.warning)
        if not all(histories):
            raise ValueError(
                f"{step.before} has no checkpoint that can be read; begin again in another "
                "--workdir"
            )

    def after_round(states: list[SimulationState], histories: Runs) -> bool:
        look()
        stop, done = bool(caught), {state.round for state in states}
        if len(done) == 1 and (stop or done.pop() % config.checkpoint.every == 0):
            checkpoints.save(states, histories)
        return stop

    reached, histories = run_each(
        simulations,
        step.rounds,
        states,
        histories=histories,
        eval_every=config.evaluate.every,
        after_round=after_round,
        only=evaluated_clients(config),
    )
    if caught:
        raise Interrupted(caught[0])
    checkpoints.save(reached, histories)
    checkpoints.wait()
    write_runs(histories, step.folder)
    return histories


def _checkpoints(folder: Path, simulations: Sequence[Simulation]) -> TrialCheckpoints:
    return TrialCheckpoints(folder / "checkpoints", simulations, keep=1, background=False)


def _train_on(
    steps: Sequence[Step],
    done: Callable[[str, Runs], None],
    *,
    play: Callable[..., None],
    config: Config,
    trace: bool,
    tell: Callable[[str], None],
    caught: Sequence[int],
) -> None:
    """Trains each point in a task of a cluster; `play` is the search's `Tasks.play`."""
    pickled, calls = pickle.dumps(config), {}
    for step in steps:
        folder, before = os.path.abspath(step.folder), step.before and os.path.abspath(step.before)
        far = step._replace(folder=Path(folder), before=before and Path(before))
        calls[step.label] = (point_task, pickled, trace, far)

    def played(label: str, runs: Runs | None) -> None:
        if runs is not None:
            done(label, runs)

    listeners = Listeners(None, tell, tell)
    play(calls, listeners=listeners, caught=caught, done=played)
    if caught:
        raise Interrupted(caught[0])


def point_task(
    place: Workplace, config: bytes, trace: bool, step: Step, report: Report
) -> Runs | None:
    """Trains a point in the process of a task; returns None if it was stopped. Arguments as of
    `train_point` and `tasks.train_task`."""
    caught: list[int] = []

    def look() -> None:
        if report(("round",)):
            caught.append(signal.SIGTERM)

    with in_place(place, report):
        points, beside = kept(_built_points, config, trace)
        run = points[step.label]
        try:
            with jax.default_matmul_precision(run.config.precision):
                return train_point(run, step, beside, caught, look=look)
        except Interrupted:
            return None
        except jax.errors.ConcretizationTypeError as error:
            # which has parts of a trace in it, that no other process can have
            raise UntraceableSetting(str(error).partition("\n")[0]) from None


def _built_points(config: bytes, trace: bool) -> tuple[dict[str, Run], list[Simulation]]:
    """Builds the points of a pickled config, and the list of the simulation beside them."""
    return points_by_program(plan(pickle.loads(config)), trace), []


def table(result: SearchResult) -> str:
    """Returns a Markdown table of every point's validation accuracy by rounds, the best of the
    longest first."""
    rounds = sorted(result.scores)

    def rank(label: str) -> list[float]:
        return [-result.scores[r].get(label, -1) for r in reversed(rounds)]

    rows = [
        ["entry", *(f"up to round {r}, validation %" for r in rounds)],
        ["---"] * (1 + len(rounds)),
    ]
    for label in sorted(result.scores[rounds[0]], key=rank):
        rows.append([label, *(_cell(result.scores[r], label) for r in rounds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(scores: Mapping[str, float], label: str) -> str:
    if label not in scores:
        return ""
    if math.isnan(scores[label]):
        return "not finite"
    return f"{100 * scores[label]:.2f}"


def budget(config: Config, points: int, halvings: int) -> str:
    """Returns the cost of a search, in words."""
    trained = rounds_trained(points, rungs(config.rounds, halvings))
    splits = "1 split" if config.trials == 1 else f"{config.trials} splits"
    return (
        f"{points} settings, {trained} rounds of training, by validation on {splits} of seed "
        f"{config.partition.seed}, seed {config.seed}"
    )


@checked
@with_standard_numerics
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
    """Searches the settings of methods with equal budgets, on validation sets, and returns a config
    that compares the best of each.

    One of a method's settings is the method as its paper has it; the others are drawn from its
    space. The search takes the first trial's seed and split.

        >>> config = fl.fairly_tuned(
        ...     config, ["local", "fedssa"], "runs/fair", points=9
        ... )  # doctest: +SKIP
        >>> fl.train_and_evaluate(config, "runs/fair")  # doctest: +SKIP

    Args:
      config: the config of the comparison, whose partition has validation sets.
      methods: the entries to tune, by name, such as those of `register_method`.
      workdir: the comparison's folder; searches are in search/ there, and go on from what is in it.
      points: number of settings of each, at least 2.
      tell: called with a line about every point.
      recipe: fields of `training` that are searched, too, with their values as text, or a
        `SearchRange`: {"training.batch_size": ("64", "512")}. All methods have the same draws.
      dataset: the data set in place of the config's name, see `make_experiment`, which the config
        that is returned then needs.
      models: architecture -> module, likewise.
      tasks: trains the points as tasks of a cluster; None trains them here.

    Raises:
      ValueError, OSError: a method is given twice, `points` is below 2, the config has no
        validation sets, or the folder is of another search. One line.
      Interrupted: by a signal.
    """
    config, workdir = typed_config(config), Path(workdir)
    names = _names_of(methods)
    if points < 2:
        raise ValueError(
            f"a fair comparison of {points}; it must be of at least 2 settings a method"
        )
    check_recipe(recipe or {})
    single = dataclasses.replace(config, trials=1)
    halvings = min(HALVINGS, config.rounds.bit_length() - 1)
    spaces = {name: space_of(name, config, recipe) for name in names}
    known = presets_of(config.entries)
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
        with atomic_open(folder / "sweep.md") as file:
            file.write(table(result) + "\n")
        tell(f"chosen: {result.best}")
        origin = f"{budget(single, points, halvings)}; searched: {described_space(space)}"
        tuned.append(preset(result.best, origin, known))
    config = dataclasses.replace(config, entries=(*known.values(), *tuned))
    return only(config, [entry.label for entry in tuned])


def _names_of(methods: Sequence[str]) -> list[str]:
    """Returns the names of the methods of entries.

    Raises:
      ValueError: a method is there twice, or is tuned already.
    """
    names = [split_spec(method)[0] for method in methods]
    if len(set(names)) < len(names) or any("@" in name for name in names):
        raise ValueError(
            f"methods is {','.join(methods)!r}; a fair comparison takes each method once, and "
            "tunes it itself"
        )
    return names
