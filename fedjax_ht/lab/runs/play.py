"""Plays a run, from the start or from the newest checkpoint: rows are written, states saved, and
warnings given between rounds."""

import contextlib
import dataclasses
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.checkpoints.checkpoint import TrialCheckpoints
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import PASSING, atomic_open, is_caused_by
from fedjax_ht.lab.report.bad_clients import place_of
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.figures import save
from fedjax_ht.lab.report.maps import remember_map
from fedjax_ht.lab.report.plots import image_grid
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.identity import begin_again, remember_rounds
from fedjax_ht.lab.runs.json_files import read_json
from fedjax_ht.lab.runs.options import ending_of, evaluated_clients
from fedjax_ht.lab.runs.own_methods import own_code
from fedjax_ht.lab.runs.plan import Run
from fedjax_ht.lab.runs.run_lock import agreed, is_primary
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.weights.start import missing, weights_of_model
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.runs import all_done, run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState, bound_simulation


def simulate(run: Run, trial: int = 0, *, beside: Simulation | None = None) -> Simulation:
    """Returns the simulation of one trial of a run.

    Args:
      run: the run.
      trial: number of the trial, from 0.
      beside: a simulation of the same data, whose samples on the devices are taken.
    """
    data = arranged(run.dataset, run.partitions[trial], run.federation, beside=run.partitions)
    options = dataclasses.replace(run.options, seed=run.options.seed + trial)
    return bound_simulation(
        run.method, run.federation, data, options=options, settings=run.settings, beside=beside
    )


def simulate_trials(run: Run, *, beside: Simulation | None = None) -> list[Simulation]:
    """Returns the simulations of all trials of a run, which share the samples on the devices."""
    simulations: list[Simulation] = []
    for trial in range(len(run.partitions)):
        made = simulate(run, trial, beside=beside)
        beside = beside or made
        simulations.append(made)
    return simulations


def lanes_of(run: Run) -> dict[str, int]:
    """Returns architecture -> lanes of a run."""
    counts = np.array([len(client.train) for client in run.partitions[0]])
    return simulation_lanes(run.federation, counts, run.method, run.options)


ProgressFn = Callable[[str, Row], None]  # (label of an entry, new row)


class Listeners(NamedTuple):
    """Functions that a run calls as it goes on.

    Attributes:
      progress: called with the entry's label and each new row, or None.
      warn: called with each line about trouble.
      stage: called with a line when something begins that takes time.
      result: called with the result, before anything is drawn.
    """

    progress: ProgressFn | None
    warn: Callable[[str], None]
    stage: Callable[[str], None]
    result: Callable[[Document], None] = lambda result: None


@dataclasses.dataclass
class Course:
    """The work of a run between its rounds: it writes rows, saves and reports, and remembers how
    far each has come."""

    run: Run
    folder: Path
    checkpointer: TrialCheckpoints
    listeners: Listeners
    caught: Sequence[int]
    writes: bool
    numbers: Sequence[int]  # of its runs among the run's trials
    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # that train it
    saved: int = -1  # round of the newest checkpoint
    written: int = 0  # rows in the files
    warned: set[tuple[int, str]] = dataclasses.field(default_factory=set)  # trial and warning
    divergence: dict[int, Divergence] = dataclasses.field(default_factory=dict)  # by trial
    is_late: bool = False  # what an earlier round left unwritten is to be written

    def write(self, histories: list[list[Row]]) -> None:
        if self.writes:
            self.written = write_runs(histories, self.folder, self.written)

    def save(self, states: list[SimulationState], histories: list[list[Row]]) -> None:
        self.checkpointer.save(states, histories)
        if is_primary() and 0 in self.numbers:
            show_server(self.run, states[0], self.folder)
            if self.writes:
                remember_rounds(self.folder, rounds_done(states), self.programs)
        self.saved = rounds_done(states)

    def show(self, row: Row) -> None:
        if self.listeners.progress is not None and is_primary():
            self.listeners.progress(self.run.label, row)
        warn_of = self.run.method.view.warn
        warning = warn_of(row) if warn_of and row["round"] else None
        if warning and (row["trial"], warning) not in self.warned:
            self.warned.add((row["trial"], warning))
            self._warn(row, warning)
        for line in self.divergence[row["trial"]].notes(row):
            self._warn(row, line)
        if row["round"] == 0 and row["trial"] == self.numbers[-1]:
            # the untrained federation is evaluated; the first round may compile for long
            stop_if_signalled(self.caught)

    def _warn(self, row: Row, line: str) -> None:
        self.listeners.warn(f"{place_of(self.run.label, row, self.run.config.trials)}: {line}")

    def after_round(self, states: list[SimulationState], histories: list[list[Row]]) -> bool:
        """Returns True to stop."""
        stop, round = agreed(bool(self.caught)), rounds_done(states)
        if any(state.round > round for state in states):
            return stop  # what a killed process had saved of some runs already stays as it is
        with self.put_off(round, stop):
            self.write(histories)
            self.checkpointer.check()
        if round % self.run.config.checkpoint.every == 0 or stop or self.is_late:
            with self.put_off(round, stop):
                self.is_late = False
                self.save(states, histories)
        return stop

    @contextlib.contextmanager
    def put_off(self, round: int, is_last: bool) -> Iterator[None]:
        """Puts off to the next round a file that cannot be written now because too much is open."""
        try:
            yield
        except OSError as error:
            # other processes wait for the first one at a checkpoint, which it would not reach
            is_alone = jax.process_count() == 1
            if is_last or not is_alone or not is_caused_by(error, PASSING):
                raise
            self.is_late = True
            self.listeners.warn(
                f"{self.run.label}: round {round} is not saved yet ({error}); it is tried again "
                "after the next round"
            )


def rounds_done(states: Sequence[SimulationState | None]) -> int:
    """Returns the rounds that all runs of an entry have done; -1 where one has no state."""
    return min(-1 if state is None else state.round for state in states)


def stop_if_signalled(caught: Sequence[int]) -> None:
    """Raises `Interrupted` in every process of a run, if any has caught a signal."""
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)


def show_server(run: Run, state: SimulationState, folder: Path) -> None:
    """Writes the pictures that a method's server makes of its state to images/<round>.png, if it
    makes any."""
    view = run.method.view
    if view.pictures is None:
        return
    pictures = view.pictures(run.federation, state.server)
    blocks = jax.tree.map(np.asarray, pictures)
    picture = image_grid(blocks, run.dataset.class_names)
    save(picture, folder / "images" / f"{state.round:05d}.png")


def play(
    run: Run,
    folder: Path,
    listeners: Listeners,
    caught: Sequence[int],
    writable: bool = True,
    *,
    trial: int | None = None,
) -> list[list[Row]]:
    """Trains the trials of a run from its newest checkpoint on.

    Args:
      run: the run.
      folder: the run's folder, in the run's.
      listeners: the functions to call as it goes on.
      caught: numbers of signals; one in it stops the run when the round in progress is saved.
      writable: False for a run on a read-only disk, which must be finished.
      trial: the number of one run to train alone, while others may be trained elsewhere; only its
        checkpoints are written then, and rows are returned when a signal has stopped it, too. A
        call without it finds them, and writes the files of the run.

    Returns:
      The rows of each run, see `simulation.history`.

    Raises:
      ValueError: weights are gone, or a run that is not finished is on a read-only disk. One line.
      Interrupted: by a signal.
    """
    config, writes = run.config, writable and is_primary()
    run = with_noted_lanes(run, folder.parent / "lanes.json", writes)
    numbers, simulations = _runs(run, trial)
    writes = writes and trial is None
    place, keep = folder / "checkpoints", config.checkpoint.keep
    checkpointer = TrialCheckpoints(place, simulations, keep, background=True, numbers=numbers)
    states, histories = checkpointer.restore(listeners.warn)
    if not writable:
        _refuse_unfinished(run.label, folder, _is_finished(states, histories, config))
    stop_if_signalled(caught)
    if not any(histories):
        _prepare_start(run, folder, listeners, writes)
    if rounds_done(states) < config.rounds:
        _tell_of_compiling(run, listeners)
    course = Course(run, folder, checkpointer, listeners, caught, writes, numbers)
    course.programs = environment() | own_code(run)
    course.saved = rounds_done(states)
    for number, rows in zip(numbers, histories):
        course.divergence[number] = Divergence(run.dataset.num_classes, rows)
    reached, histories = run_each(
        simulations,
        config.rounds,
        states,
        histories=histories,
        eval_every=config.evaluate.every,
        ending=ending_of(config),
        numbers=numbers,
        progress_fn=course.show,
        after_round=course.after_round,
        only=evaluated_clients(config),
        score_every=config.evaluate.participants,
    )
    if rounds_done(reached) != course.saved or course.is_late:
        course.save(reached, histories)
    checkpointer.wait()
    if writes:  # the run may have ended last time between a checkpoint and this note
        remember_rounds(folder, rounds_done(reached), course.programs)
    if trial is not None:
        return histories
    course.write(histories)
    stop_if_signalled(caught)
    remember_map(run, simulations[0], reached[0], folder, write=writes, warn=listeners.warn)
    return histories


def _runs(run: Run, trial: int | None) -> tuple[Sequence[int], list[Simulation]]:
    """Returns the numbers and the simulations of a run's trials, or of one of them alone."""
    if trial is None:
        return range(run.config.trials), simulate_trials(run)
    return [trial], [simulate(run, trial)]


def _refuse_unfinished(label: str, folder: Path, is_finished: bool) -> None:
    """Refuses a run on a read-only disk that has rounds left to do."""
    if not is_finished:
        raise ValueError(f"{folder} cannot be written to, and {label} is not finished")


def _is_finished(
    states: Sequence[SimulationState | None], histories: Sequence[list[Row]], config: Config
) -> bool:
    """Returns True where a run has no rounds left to do."""
    known = [state for state in states if state is not None]
    is_whole = len(known) == len(states) and all(histories)
    return is_whole and all_done(known, histories, config.rounds, ending_of(config))


def _prepare_start(run: Run, folder: Path, listeners: Listeners, writes: bool) -> None:
    """Checks that a run can start at round 0, and moves aside the results of another course."""
    gone = missing(weights_of_model(run.config.model))
    if gone:
        raise ValueError(f"no weights at {gone[0]}, which {run.label} starts from at round 0")
    aside = begin_again(folder) if writes else None
    if aside:
        listeners.warn(
            f"{run.label}: {folder} has no checkpoint that can be read; it starts again at round "
            f"0, and what was there is now in {aside}"
        )


def _tell_of_compiling(run: Run, listeners: Listeners) -> None:
    """Tells of the programs compiled in the first round, in the first process."""
    if not is_primary():
        return
    devices = run.config.devices or len(jax.devices())
    num_programs = len(run.federation.buckets)
    programs = "1 architecture" if num_programs == 1 else f"{num_programs} architectures"
    kind = jax.devices()[0].device_kind
    listeners.stage(f"{run.label}: compiling {programs} for {devices} x {kind}, in the first round")


def with_noted_lanes(run: Run, noted: Path, writes: bool) -> Run:
    """Returns the run with the lanes that its experiment has noted.

    Where lanes are chosen, a run notes them for each architecture before it first trains it, so
    that it goes on with the same.

    Args:
      run: the run.
      noted: a JSON file, architecture -> lanes.
      writes: False notes nothing.
    """
    if run.options.lanes is not None:
        return run
    known = read_json(noted) if noted.exists() else {}
    names = {bucket.name for bucket in run.federation.buckets}
    if not names <= set(known):
        known = lanes_of(run) | known
        if writes:
            with atomic_open(noted) as file:
                json.dump(known, file, indent=2)
    lanes = {name: known[name] for name in names}
    return run._replace(options=dataclasses.replace(run.options, lanes=lanes))
