"""Trains the points of a search, here or as tasks of a cluster.

Points that differ in numbers alone share a compiled program (a family).
"""

import dataclasses
import functools
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_ht.core.method import varied
from fedjax_ht.lab.config.entries import OVERRIDDEN
from fedjax_ht.lab.runs.method import make_method, uplink_steps
from fedjax_ht.lab.runs.plan import Plan, Run, plan
from fedjax_ht.lab.runs.play import Notify, lanes_of, play
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.tasks import Report, Tasks, Workplace, in_place, kept, stoppable
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.rows import Runs

Done = Callable[[str, Runs], None]
"""Called with the label of a trained point and the rows of its trials."""
Train = Callable[[int, Mapping[str, Path], Done], None]
"""Trains points up to a number of rounds, each in the folder of its label, from its newest
checkpoint there on."""


class UntraceableSetting(Exception):
    """A setting cannot vary within a program."""


def trainer(
    experiment: Plan,
    workdir: Path,
    *,
    trace: bool,
    tasks: Tasks | None,
    tell: Callable[[str], None],
    caught: Sequence[int],
) -> tuple[list[str], Train]:
    """Returns the points in the order of their programs, and a function that trains some of them.

    Args:
      experiment: the plan, with the points as its entries.
      workdir: the search's folder.
      trace: False compiles each point for itself.
      tasks: trains the points as tasks of a cluster; None trains them here, one after another.
      tell: called with a line about every point.
      caught: numbers of signals; one in it stops the search when the round in progress is saved.
    """
    points = {run.label: run for family in families(experiment, trace) for run in family}

    def hear(kind: str, *what: Any) -> None:
        if kind == "warn":
            tell(*what)

    def train_here(rounds: int, folders: Mapping[str, Path], done: Done) -> None:
        for label, folder in folders.items():
            done(label, train_point(points[label], rounds, folder, hear, caught))

    def train_far(rounds: int, folders: Mapping[str, Path], done: Done) -> None:
        pickled, calls = pickle.dumps(experiment.config), {}
        for label, folder in folders.items():
            place = Path(os.path.abspath(folder))
            calls[label] = (point_task, pickled, trace, label, rounds, place)

        def played(label: str, runs: Runs | None) -> None:
            if runs is not None:
                done(label, runs)

        assert tasks is not None
        tasks.play(experiment, workdir, calls, notify=hear, caught=caught, done=played)
        if caught:
            raise Interrupted(caught[0])

    return list(points), train_here if tasks is None else train_far


def families(experiment: Plan, trace: bool = True) -> list[list[Run]]:
    """Returns the runs of an experiment's points by program, one family each.

    The runs of a family have one method, whose varying settings are arguments of its functions.

    Args:
      experiment: the experiment, with the points as its entries.
      trace: False compiles each point for itself.
    """
    runs = experiment.runs
    settings = {label: _settings(run) for label, run in runs.items()}
    differing = _differing(list(settings.values()))
    alike: dict[tuple, list[str]] = {}
    for label, values in settings.items():
        varying = []
        for key in differing:
            # another model is another program, and so is another integer
            is_number = type(values.get(key)) is float and not key.startswith("model.")
            if trace and is_number and _may_vary(runs[label], key):
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


def train_point(run: Run, rounds: int, folder: Path, notify: Notify, caught: Sequence[int]) -> Runs:
    """Trains a point up to a number of rounds, as `play` trains a run: without an early end and
    without maps, and with its newest checkpoint alone. Returns its rows."""
    config = run.config
    alone = dataclasses.replace(
        config,
        rounds=rounds,
        give_up=None,
        evaluate=dataclasses.replace(config.evaluate, patience=None),
        checkpoint=dataclasses.replace(config.checkpoint, keep=1),
        report=dataclasses.replace(config.report, maps="none"),
    )
    runs = play(run._replace(config=alone), folder, notify, caught)
    # its folder may have more, of a search that halved the points at other rounds
    return [[row for row in rows if row["round"] <= rounds] for rows in runs]


def point_task(
    place: Workplace,
    config: bytes,
    trace: bool,
    label: str,
    rounds: int,
    folder: Path,
    report: Report,
) -> Runs | None:
    """Trains a point in the process of a task; returns None if it was stopped. Arguments as of
    `train_point` and `tasks.train_task`."""
    with in_place(place, report) as notify:
        hear, caught = stoppable(notify)
        run = kept(_built_points, config, trace)[label]
        try:
            with jax.default_matmul_precision(run.config.precision):
                return train_point(run, rounds, folder, hear, caught)
        except Interrupted:
            return None
        except jax.errors.ConcretizationTypeError as error:
            # which has parts of a trace in it, that no other process can have
            raise UntraceableSetting(str(error).partition("\n")[0]) from None


def _built_points(config: bytes, trace: bool) -> dict[str, Run]:
    """Builds the points of a pickled config."""
    every = families(plan(pickle.loads(config)), trace)
    return {run.label: run for family in every for run in family}
