"""Trains one entry of a run, from the start or from its newest checkpoint."""

import contextlib
import dataclasses
import functools
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.checkpoints.trials import TrialCheckpoints
from fedjax_ht.checkpoints.writers import write_runs
from fedjax_ht.configs.sections import Config
from fedjax_ht.core.files import PASSING, atomic_open, is_caused_by
from fedjax_ht.experiment.build import Experiment, entry_lanes, simulate_trials
from fedjax_ht.experiment.environment import environment
from fedjax_ht.experiment.identity import begin_again, remember_rounds
from fedjax_ht.experiment.json_files import read_json
from fedjax_ht.experiment.options import evaluated_clients
from fedjax_ht.experiment.run_lock import agreed, is_primary
from fedjax_ht.experiment.weights import missing, weights_of_model
from fedjax_ht.report.bad_clients import place_of
from fedjax_ht.report.figures import save
from fedjax_ht.report.maps import remember_map
from fedjax_ht.report.plots import image_grid
from fedjax_ht.runner.own_methods import own_code
from fedjax_ht.runner.signals import Interrupted
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.history import Row, is_over
from fedjax_ht.simulation.runs import Ends, all_done, run_each
from fedjax_ht.simulation.simulation import SimulationState
from fedjax_ht.simulation.together import fastest

ProgressFn = Callable[[str, Row], None]  # (label of an entry, new row)


class Listeners(NamedTuple):
    """Functions that a run calls as it goes on.

    Attributes:
      progress: called with the entry's label and each new row, or None.
      warn: called with each line about trouble.
      stage: called with a line when something begins that takes time.
    """

    progress: ProgressFn | None
    warn: Callable[[str], None]
    stage: Callable[[str], None]


def train_entry(
    label: str,
    experiment: Experiment,
    folder: Path,
    listeners: Listeners,
    caught: Sequence[int],
    writable: bool = True,
) -> list[list[Row]]:
    """Trains the runs of an entry from its newest checkpoint on.

    Args:
      label: the entry's label.
      experiment: the experiment built from the run's config.
      folder: the entry's folder, in the run's.
      listeners: the functions to call as it goes on.
      caught: numbers of signals; one in it stops the run when the round in progress is saved.
      writable: False for a run on a read-only disk, which must be finished.

    Returns:
      The rows of each run, see `simulation.history`.

    Raises:
      ValueError: weights are gone, or a run that is not finished is on a read-only disk. One line.
      Interrupted: by a signal.
    """
    config, writes = experiment.configs[label], writable and is_primary()
    experiment = with_noted_lanes(label, experiment, folder.parent / "lanes.json", writes)
    simulations = simulate_trials(label, experiment)
    checkpointer = TrialCheckpoints(
        folder / "checkpoints", simulations, config.checkpoint.keep, background=True
    )
    states, histories = checkpointer.restore(listeners.warn)
    if not writable:
        _refuse_unfinished(label, folder, _is_finished(states, histories, config))
    stop_if_signalled(caught)
    if not any(histories):
        _prepare_start(label, experiment, config, folder, listeners, writes)
    if is_primary() and _rounds_done(states) < config.rounds:
        listeners.stage(_compiling(label, experiment, config))
    course = _Course(label, experiment, config, folder, checkpointer, listeners, caught, writes)
    course.programs = environment() | own_code(experiment.entries[label], config)
    course.saved = _rounds_done(states)
    course.divergence = [Divergence(experiment.dataset.num_classes, rows) for rows in histories]
    reached, histories = run_each(
        simulations,
        config.rounds,
        states,
        histories=histories,
        eval_every=config.evaluate.every,
        ends=_ends(config),
        each=fastest(simulations),
        progress_fn=course.show,
        after_round=course.after_round,
        only=evaluated_clients(config),
        score_every=config.evaluate.participants,
    )
    if _rounds_done(reached) != course.saved or course.is_late:
        course.save(reached, histories)
    checkpointer.wait()
    if writes:  # the run may have ended last time between a checkpoint and this note
        remember_rounds(folder, _rounds_done(reached), course.programs)
    course.write(histories)
    stop_if_signalled(caught)
    if config.report.maps != "none":
        remember_map(label, experiment, simulations[0], reached[0], folder, writes, listeners.warn)
    return histories


def _refuse_unfinished(label: str, folder: Path, is_finished: bool) -> None:
    """Refuses an entry on a read-only disk that has rounds left to do."""
    if not is_finished:
        raise ValueError(f"{folder} cannot be written to, and {label} is not finished")


@dataclasses.dataclass
class _Course:
    """The work of an entry between its rounds: it writes rows, saves and reports, and remembers how
    far each has come."""

    label: str
    experiment: Experiment
    config: Config
    folder: Path
    checkpointer: TrialCheckpoints
    listeners: Listeners
    caught: Sequence[int]
    writes: bool
    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)  # that train it
    saved: int = -1  # round of the newest checkpoint
    written: int = 0  # rows in the files
    warned: set[tuple[int, str]] = dataclasses.field(default_factory=set)  # trial and warning
    divergence: list[Divergence] = dataclasses.field(default_factory=list)  # of each trial
    is_late: bool = False  # what an earlier round left unwritten is to be written

    def write(self, histories: list[list[Row]]) -> None:
        if self.writes:
            self.written = write_runs(histories, self.folder, self.written)

    def save(self, states: list[SimulationState], histories: list[list[Row]]) -> None:
        self.checkpointer.save(states, histories)
        if is_primary():
            show_server(self.label, self.experiment, states[0], self.folder)
            if self.writes:
                remember_rounds(self.folder, _rounds_done(states), self.programs)
        self.saved = _rounds_done(states)

    def show(self, row: Row) -> None:
        if self.listeners.progress is not None and is_primary():
            self.listeners.progress(self.label, row)
        warn_of = self.experiment.methods[self.label].view.warn
        warning = warn_of(row) if warn_of and row["round"] else None
        if warning and (row["trial"], warning) not in self.warned:
            self.warned.add((row["trial"], warning))
            self._warn(row, warning)
        for line in self.divergence[row["trial"]].notes(row):
            self._warn(row, line)
        if row["round"] == 0 and row["trial"] == self.config.trials - 1:
            # the untrained federation is evaluated; the first round may compile for long
            stop_if_signalled(self.caught)

    def _warn(self, row: Row, line: str) -> None:
        self.listeners.warn(f"{place_of(self.label, row, self.config.trials)}: {line}")

    def after_round(self, states: list[SimulationState], histories: list[list[Row]]) -> bool:
        """Returns True to stop."""
        stop, round = agreed(bool(self.caught)), _rounds_done(states)
        if any(state.round > round for state in states):
            return stop  # what a killed process had saved of some runs already stays as it is
        with self.put_off(round, stop):
            self.write(histories)
            self.checkpointer.check()
        if round % self.config.checkpoint.every == 0 or stop or self.is_late:
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
                f"{self.label}: round {round} is not saved yet ({error}); it is tried again after "
                "the next round"
            )


def _is_finished(
    states: Sequence[SimulationState | None], histories: Sequence[list[Row]], config: Config
) -> bool:
    """Returns True where an entry has no rounds left to do."""
    known = [state for state in states if state is not None]
    is_whole = len(known) == len(states) and all(histories)
    return is_whole and all_done(known, histories, config.rounds, _ends(config))


def _ends(config: Config) -> Ends:
    return functools.partial(is_over, patience=config.evaluate.patience, give_up=config.give_up)


def _rounds_done(states: Sequence[SimulationState | None]) -> int:
    """Returns the rounds that all runs of an entry have done; -1 where one has no state."""
    return min(-1 if state is None else state.round for state in states)


def _prepare_start(
    label: str,
    experiment: Experiment,
    config: Config,
    folder: Path,
    listeners: Listeners,
    writes: bool,
) -> None:
    """Checks that an entry can start at round 0, and moves aside the results of another course."""
    gone = missing(weights_of_model(config.model))
    if gone:
        raise ValueError(f"no weights at {gone[0]}, which {label} starts from at round 0")
    aside = begin_again(folder) if writes else None
    if aside:
        listeners.warn(
            f"{label}: {folder} has no checkpoint that can be read; it starts again at round 0, "
            f"and what was there is now in {aside}"
        )


def _compiling(label: str, experiment: Experiment, config: Config) -> str:
    """Returns the line about the programs compiled in the first round."""
    devices = config.devices or len(jax.devices())
    num_programs = len(experiment.federations[label].buckets)
    programs = "1 architecture" if num_programs == 1 else f"{num_programs} architectures"
    kind = jax.devices()[0].device_kind
    return f"{label}: compiling {programs} for {devices} x {kind}, in the first round"


def with_noted_lanes(label: str, experiment: Experiment, noted: Path, writes: bool) -> Experiment:
    """Returns the experiment with the lanes that this run has noted for an entry.

    Where lanes are chosen, a run notes them for each architecture before it first trains it, so
    that it goes on with the same.

    Args:
      label: the entry's label.
      experiment: the experiment that has the entry.
      noted: a JSON file, architecture -> lanes.
      writes: False notes nothing.
    """
    options, federation = experiment.options, experiment.federations[label]
    if options.lanes is not None:
        return experiment
    known = read_json(noted) if noted.exists() else {}
    names = {bucket.name for bucket in federation.buckets}
    if not names <= set(known):
        known = entry_lanes(label, experiment, runs=len(experiment.partitions)) | known
        if writes:
            with atomic_open(noted) as file:
                json.dump(known, file, indent=2)
    lanes = {name: known[name] for name in names}
    return experiment._replace(options=dataclasses.replace(options, lanes=lanes))


def stop_if_signalled(caught: Sequence[int]) -> None:
    """Raises `Interrupted` in every process of a run, if any has caught a signal."""
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)


def show_server(label: str, experiment: Experiment, state: SimulationState, folder: Path) -> None:
    """Writes the pictures that a method's server makes of its state to images/<round>.png, if it
    makes any."""
    view = experiment.methods[label].view
    if view.pictures is None:
        return
    pictures = view.pictures(experiment.federations[label], state.server)
    blocks = jax.tree.map(np.asarray, pictures)
    picture = image_grid(blocks, experiment.dataset.class_names)
    save(picture, folder / "images" / f"{state.round:05d}.png")
