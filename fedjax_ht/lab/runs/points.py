"""Trains the points of a search, here or as tasks of a cluster.

Points that differ in numbers alone share a compiled program (a family).
"""

import dataclasses
import functools
import logging
import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_ht.core.method import varied
from fedjax_ht.lab.checkpoints.checkpoint import TrialCheckpoints
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.config.entries import OVERRIDDEN
from fedjax_ht.lab.runs.method import evaluated_clients, make_method, uplink_steps
from fedjax_ht.lab.runs.plan import Plan, Run, plan
from fedjax_ht.lab.runs.play import lanes_of, simulate_trials
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.tasks import Report, Tasks, Workplace, in_place, kept
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.rows import Runs
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState

_LOGGER = logging.getLogger(__name__)


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


Done = Callable[[str, Runs], None]
"""Called with the label of a trained point and the rows of its trials."""


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
) -> tuple[list[str], Callable[[Sequence[Step], Done], None]]:
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

    def train_here(steps: Sequence[Step], done: Done) -> None:
        beside: list[Simulation] = []
        for step in steps:
            done(step.label, train_point(points[step.label], step, beside, caught))

    def train_far(tasks: Tasks, steps: Sequence[Step], done: Done) -> None:
        pickled, calls = pickle.dumps(experiment.config), {}
        for step in steps:
            folder = Path(os.path.abspath(step.folder))
            before = step.before and Path(os.path.abspath(step.before))
            far = step._replace(folder=folder, before=before)
            calls[step.label] = (point_task, pickled, trace, far)

        def played(label: str, runs: Runs | None) -> None:
            if runs is not None:
                done(label, runs)

        def hear(kind: str, *what: Any) -> None:
            if kind != "row":
                tell(*what)

        tasks.play(experiment, workdir, calls, notify=hear, caught=caught, done=played)
        if caught:
            raise Interrupted(caught[0])

    return list(points), train_here if tasks is None else functools.partial(train_far, tasks)


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
    every = families(plan(pickle.loads(config)), trace)
    return {run.label: run for family in every for run in family}, []
