"""Trains runs as tasks of a cluster: what a task does where it runs, and what the driver, the
program that was started, does while they run. on_ray.py has the cluster.

A task trains one run, of an entry and a trial, in the run's own folder, which all machines see. It
goes on from the newest checkpoint there, so that a task that died is simply started again, on
whatever machine. The driver shows the rows of all tasks and writes the files of entries.
"""

import contextlib
import pickle
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax

from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.checkpoint import of_trial
from fedjax_ht.lab.checkpoints.writers import read_runs, write_runs
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.build import Experiment, build
from fedjax_ht.lab.runs.course import Listeners
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.identity import remember_rounds
from fedjax_ht.lab.runs.own_methods import own_code
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.train_arm import train_arm
from fedjax_ht.lab.runs.workplace import Event, Report, Workplace, in_place, kept, workplace
from fedjax_ht.simulation.rows import Row

POLL = 0.5  # seconds between two looks at the tasks


class Cancelled(Exception):
    """A task was taken back before it began."""


class Cluster(Protocol):
    """Machines that train tasks, such as `on_ray.RayCluster`."""

    accelerated: bool  # a task has an accelerator

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Hashable:
        """Has `function(*arguments, report)` called somewhere; returns a handle."""

    def finished(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Returns those that have ended, after at most so many seconds."""
        ...

    def result(self, handle: Any) -> Any:
        """Returns the result of an ended task, or raises its error; `Cancelled` has none."""

    def events(self) -> list[Event]:
        """Returns what tasks have reported since the last call."""
        ...

    def stop(self, handles: Sequence[Any]) -> None:
        """Tells tasks to end after their round, and takes back those that have not begun."""


class Outcome(NamedTuple):
    """The rows of each run that a task has trained, and the programs that did, see
    `environment`."""

    runs: list[list[Row]]
    programs: dict[str, str]


def _begun(config: bytes) -> Experiment:
    """Builds the experiment of a pickled config, whose run has begun."""
    return build(pickle.loads(config), begun=True)


def train_task(
    place: Workplace, config: bytes, label: str, trial: int | None, report: Report
) -> Outcome:
    """Trains one run of an entry, or all of them together, in the process of a task.

    Args:
      place: the place of the run's tasks.
      config: the config of the run, pickled.
      label: the entry's label.
      trial: the run's number, or None for all.
      report: sends rows and lines to the driver.
    """
    caught: list[int] = []

    def progress(label: str, row: Row) -> None:
        if report(("row", label, row)):
            caught.append(signal.SIGTERM)

    with in_place(place, report) as listeners:
        experiment = kept(_begun, config)
        arm = experiment.arms[label]
        listeners = listeners._replace(progress=progress)
        folder, runs = place.workdir / folder_of(label), []
        precision = experiment.config.precision
        # a task that was stopped before its first round has nothing to tell
        with contextlib.suppress(Interrupted), jax.default_matmul_precision(precision):
            runs = train_arm(arm, folder, listeners, caught, trial=trial)
        programs = environment() | own_code(arm)
    return Outcome(runs, programs)


def play(
    cluster: Cluster,
    calls: Mapping[Any, tuple],
    on_event: Callable[[Event], None],
    caught: Sequence[int],
    done: Callable[[Any, Any], None],
) -> None:
    """Plays tasks to their end.

    Args:
      cluster: the machines that play them.
      calls: key of a task -> its function and arguments.
      on_event: called with each event of a task.
      caught: numbers of signals; one in it stops all tasks.
      done: called with the key and the result of each task.

    Raises:
      Exception: the first error of a task, when the others have saved and stopped.
    """
    waiting = {cluster.submit(*call): key for key, call in calls.items()}
    failure: Exception | None = None
    is_stopping = False
    while waiting:
        _pass_on(cluster, on_event)
        if (caught or failure) and not is_stopping:
            cluster.stop(list(waiting))
            is_stopping = True
        for handle in cluster.finished(list(waiting), POLL):
            key = waiting.pop(handle)
            try:
                done(key, cluster.result(handle))
            except Cancelled:
                continue
            except Exception as error:
                failure = failure or error
    _pass_on(cluster, on_event)
    if failure is not None:
        raise failure


def _pass_on(cluster: Cluster, on_event: Callable[[Event], None]) -> None:
    """Calls a function with each event that the tasks have reported since the last call."""
    for event in cluster.events():
        on_event(event)


def is_trained(folder: Path, config: Config) -> bool:
    """Returns whether each run of an entry has a checkpoint of the last round."""
    directories = [of_trial(folder / "checkpoints", trial) for trial in range(config.trials)]
    return all(max(sealed.numbers(path), default=-1) >= config.rounds for path in directories)


def train_on(
    open_cluster: Callable[[], Cluster],
    config_file: str | None,
    experiment: Experiment,
    workdir: Path,
    listeners: Listeners,
    caught: Sequence[int],
) -> None:
    """Trains all runs of an experiment on a cluster that are not finished, each in a task; what is
    left to do then is what a process does that finds its runs finished. Bound to its first two
    arguments it is a `train.Trainer`.

    Where runs end before the last round (`config.evaluate.patience`, `config.give_up`), those of an
    entry end together: a task more takes all of them to the same round.

    Args:
      open_cluster: returns the cluster.
      config_file: "FILE[:ARGUMENT]" of the config, or None.
      experiment, workdir, listeners, caught: arguments of a `train.Trainer`.
    """
    config = experiment.config
    folders = {label: workdir / folder_of(label) for label in experiment.arms}
    labels = [label for label in folders if not is_trained(folders[label], config)]
    if not labels:
        return
    cluster = open_cluster()
    place = workplace(experiment, workdir, config_file, cluster.accelerated)
    outcomes: dict[tuple[str, int | None], Outcome] = {}
    pickled = pickle.dumps(config)

    def told(event: Event) -> None:
        if event[0] == "row" and listeners.progress is not None:
            listeners.progress(*event[1:])
        elif event[0] in ("warn", "stage"):
            getattr(listeners, event[0])(event[1])

    def play_runs(keys: Sequence[tuple[str, int | None]]) -> None:
        calls = {key: (train_task, place, pickled, *key) for key in keys}
        play(cluster, calls, told, caught, outcomes.__setitem__)

    try:
        play_runs([(label, trial) for label in labels for trial in range(config.trials)])
    finally:
        for label in labels:
            note_runs(folders[label], [outcomes.get((label, t)) for t in range(config.trials)])
    if caught:
        raise Interrupted(caught[0])
    uneven = [label for label in labels if not is_trained(folders[label], config)]
    play_runs([(label, None) for label in uneven])
    if caught:
        raise Interrupted(caught[0])


def note_runs(folder: Path, outcomes: Sequence[Outcome | None]) -> None:
    """Writes the rows of an entry's runs, as far as each has come, and notes its rounds and
    programs; of runs without an outcome the rows that were written before stay."""
    before = {run[0]["trial"]: run for run in read_runs(folder)}
    runs, programs = [], {}
    for trial, outcome in enumerate(outcomes):
        rows = outcome.runs[0] if outcome is not None and outcome.runs else before.get(trial, [])
        runs.append(rows)
        if outcome is not None:
            programs = programs or outcome.programs
    if any(runs):
        write_runs(runs, folder)
    if all(runs):
        remember_rounds(folder, min(rows[-1]["round"] for rows in runs), programs)
