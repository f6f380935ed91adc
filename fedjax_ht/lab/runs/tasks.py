"""Trains runs as tasks of a cluster (`ray_cluster`): the work of a task, and of the driver.

The driver is the program that the user started. A task trains one run, of an entry and a trial, in
the run's own folder, which all machines must see. It resumes from the newest checkpoint there, so
that a task that died restarts on any machine. The driver shows the rows of all tasks and writes the
files of entries.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.core.numerics import use_standard_numerics
from fedjax_ht.core.user_code import module_folders, user_modules_in
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.checkpoint import of_trial
from fedjax_ht.lab.checkpoints.writers import read_runs, write_runs
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.report.rows import up_to
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.identity import remember_rounds
from fedjax_ht.lab.runs.own_methods import own_code, own_names
from fedjax_ht.lab.runs.plan import Plan, plan
from fedjax_ht.lab.runs.play import Notify, play
from fedjax_ht.lab.runs.ray_cluster import RayCluster, Report
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.simulation.rows import Row

T = TypeVar("T")

SEEN = 15.0
"""Seconds after which all machines see a new file: network file systems cache for a while that it
did not exist."""
POLL = 0.5  # seconds between polls of the tasks


class Tasks(NamedTuple):
    """Trains runs and points as tasks of a cluster.

    Attributes:
      open_cluster: returns the cluster; starts it, or connects to it, on the first call.
      config_file: "FILE[:ARGUMENT]" of the config, or None.
    """

    open_cluster: Callable[[], RayCluster]
    config_file: str | None

    def play(
        self,
        experiment: Plan,
        workdir: Path,
        calls: Mapping[Any, tuple],
        *,
        notify: Notify,
        caught: Sequence[int],
        done: Callable[[Any, Any], None],
    ) -> None:
        """Runs tasks of an experiment to their end.

        Args:
          experiment: the experiment.
          workdir: the run's folder.
          calls: key of a task -> its function and arguments; the function also gets the run's
            `Workplace` first and a `Report` last.
          notify: called with the rows and messages of all tasks.
          caught: numbers of caught signals; any of them stops all tasks.
          done: called with the key and the result of each task.

        Raises:
          Exception: the first error of a task, after the others have saved and stopped.
        """
        if not calls:
            return
        cluster = self.open_cluster()
        place = workplace(experiment, workdir, self.config_file, cluster.accelerated)
        waiting = {}
        for key, (function, *arguments) in calls.items():
            waiting[cluster.submit(function, place, *arguments)] = key
        failure: Exception | None = None
        is_stopping = False

        def pass_on() -> None:
            for event in cluster.events():
                if event[0] in ("row", "warn", "stage"):  # other events only ask whether to stop
                    notify(*event)

        while waiting:
            pass_on()
            if (caught or failure) and not is_stopping:
                cluster.stop()
                is_stopping = True
            for handle in cluster.finished(list(waiting), POLL):
                key = waiting.pop(handle)
                try:
                    result = cluster.result(handle)
                    if result is not None:
                        done(key, result)
                except Exception as error:
                    failure = failure or error
        pass_on()
        if failure is not None:
            raise failure


class Workplace(NamedTuple):
    """The driver's surroundings, which its tasks reproduce.

    Attributes:
      workdir: the run's folder.
      stamp: checksum of its config.json.
      directory: current folder of the driver, to which paths in a config are relative.
      folders: folders of the user's own modules.
      config_file: "FILE[:ARGUMENT]" that registers the config's own methods, or None.
      devices: number of CPU devices; None computes on the task's accelerator.
    """

    workdir: Path
    stamp: str
    directory: str
    folders: tuple[str, ...]
    config_file: str | None
    devices: int | None


def workplace(
    experiment: Plan, workdir: Path, config_file: str | None, accelerated: bool
) -> Workplace:
    """Returns the workplace of a run's tasks, once config.json is written.

    Raises:
      ValueError: a method or partition is registered only in this process. One line.
    """
    names = own_names(experiment)
    registered = names["own_methods"] + names["own_partitions"]
    if registered and config_file is None:
        raise ValueError(
            f"{registered[0]} is only registered in this process, which the tasks of a cluster "
            "do not see; name it as module:function, or register it in the file of --config"
        )
    return Workplace(
        workdir=workdir.absolute(),
        stamp=_stamp(workdir),
        directory=os.getcwd(),
        folders=tuple(map(os.path.abspath, module_folders())),
        config_file=config_file if registered else None,
        devices=None if accelerated else len(jax.devices()),
    )


def _stamp(workdir: Path) -> str:
    path = workdir / "config.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


@contextlib.contextmanager
def in_place(place: Workplace, report: Report) -> Iterator[tuple[Notify, list[int]]]:
    """Sets up the process of a task.

    Yields the function that notifies the driver, and a list that receives a signal when the task
    should stop after a row.

    Raises:
      OSError: this machine does not see the run's folder. One line.
    """
    end = time.monotonic() + SEEN
    while _stamp(place.workdir) != place.stamp or not os.path.isdir(place.directory):
        if time.monotonic() > end:
            raise FileNotFoundError(
                f"{socket.gethostname()} does not see {place.workdir} like the machine that "
                "started the run; --workdir and the current folder must be on storage that all "
                "machines of the cluster share"
            )
        time.sleep(0.5)
    os.chdir(place.directory)
    _prepare_process(place.devices)

    caught: list[int] = []

    def notify(kind: str, *what: Any) -> None:
        if kind == "stage":
            what = (f"{what[0]}, on {socket.gethostname()}",)
        if report((kind, *what)) and kind == "row":
            caught.append(signal.SIGTERM)

    with user_modules_in(*place.folders):
        _register(place.config_file)
        yield notify, caught


@functools.lru_cache(maxsize=1)
def kept(make: Callable[..., T], *of: Hashable) -> T:
    """Returns `make(*of)`, cached for all tasks of this process with equal arguments.

    A process thus builds and compiles once for many runs or points. Only the last result is kept,
    since it holds samples and programs.
    """
    return make(*of)


@functools.cache  # a process runs several tasks; devices must be chosen before any computation
def _prepare_process(devices: int | None) -> None:
    if devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    use_standard_numerics()
    enable_compilation_cache()


@functools.cache
def _register(config_file: str | None) -> None:
    if config_file is not None:
        read_config_file(config_file)


class Outcome(NamedTuple):
    """The rows of each run that a task trained, and the programs used, see `environment`."""

    runs: list[list[Row]]
    programs: dict[str, str]


def _begun(config: bytes) -> Plan:
    """Builds the experiment of a pickled config whose run has begun."""
    return plan(pickle.loads(config), begun=True)


def train_task(
    place: Workplace, config: bytes, label: str, trial: int | None, report: Report
) -> Outcome:
    """Trains one run of an entry, or all of them together, in the process of a task.

    Args:
      place: the workplace of the run's tasks.
      config: the config of the run, pickled.
      label: the entry's label.
      trial: the run's number, or None for all.
      report: sends rows and messages to the driver.
    """
    with in_place(place, report) as (notify, caught):
        experiment = kept(_begun, config)
        run = experiment.runs[label]
        folder, runs = place.workdir / folder_of(label), []
        precision = experiment.config.precision
        # a task that was stopped before its first round has no rows
        with contextlib.suppress(Interrupted), jax.default_matmul_precision(precision):
            runs = play(run, folder, notify, caught, trial=trial)
        programs = environment() | own_code(run)
    return Outcome(runs, programs)


def is_trained(folder: Path, config: Config) -> bool:
    """Returns whether each run of an entry has a checkpoint of the last round."""
    directories = [of_trial(folder / "checkpoints", trial) for trial in range(config.trials)]
    return all(max(sealed.numbers(path), default=-1) >= config.rounds for path in directories)


def train_on(
    tasks: Tasks,
    experiment: Plan,
    workdir: Path,
    notify: Notify,
    caught: Sequence[int],
) -> None:
    """Trains all unfinished runs of an experiment on a cluster, each in a task.

    If runs end before the last round (`config.evaluate.patience`, `config.give_up`), those of an
    entry must end together: one more task takes all of them to the same round.

    Raises:
      Interrupted: a signal stopped the run.
    """
    config = experiment.config
    folders = {label: workdir / folder_of(label) for label in experiment.runs}
    labels = [label for label in folders if not is_trained(folders[label], config)]
    outcomes: dict[tuple[str, int | None], Outcome] = {}
    pickled = pickle.dumps(config)

    def play_runs(keys: Sequence[tuple[str, int | None]]) -> None:
        calls = {key: (train_task, pickled, *key) for key in keys}
        done = outcomes.__setitem__
        tasks.play(experiment, workdir, calls, notify=notify, caught=caught, done=done)

    try:
        play_runs([(label, trial) for label in labels for trial in range(config.trials)])
    finally:
        for label in labels:
            note_runs(folders[label], [outcomes.get((label, t)) for t in range(config.trials)])
    if caught:
        raise Interrupted(caught[0])
    play_runs([(label, None) for label in labels if not is_trained(folders[label], config)])
    if caught:
        raise Interrupted(caught[0])


def note_runs(folder: Path, outcomes: Sequence[Outcome | None]) -> None:
    """Writes the rows of an entry's runs so far, and records its rounds and programs.

    Runs without an outcome keep the rows that were written before. All are written up to the same
    round, since reports compare them round by round.
    """
    before = {run[0]["trial"]: run for run in read_runs(folder)}
    runs, programs = [], {}
    for trial, outcome in enumerate(outcomes):
        rows = outcome.runs[0] if outcome is not None and outcome.runs else before.get(trial, [])
        runs.append(rows)
        if outcome is not None:
            programs = programs or outcome.programs
    if any(runs):
        runs = up_to(runs)
        write_runs(runs, folder)
        if all(runs):
            remember_rounds(folder, runs[0][-1]["round"], programs)
