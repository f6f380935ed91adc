"""Trains one arm of an experiment, from the start or from its newest checkpoint."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jax

from fedjax_ht.lab.checkpoints.trials import TrialCheckpoints
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.maps import remember_map
from fedjax_ht.lab.runs.arm import Arm, lanes_of, simulate, simulate_trials
from fedjax_ht.lab.runs.course import Course, Listeners, rounds_done, stop_if_signalled
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.identity import begin_again, remember_rounds
from fedjax_ht.lab.runs.json_files import read_json
from fedjax_ht.lab.runs.options import ending_of, evaluated_clients
from fedjax_ht.lab.runs.own_methods import own_code
from fedjax_ht.lab.runs.run_lock import is_primary
from fedjax_ht.lab.weights.start import missing, weights_of_model
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.runs import all_done, run_each
from fedjax_ht.simulation.simulation import Simulation, SimulationState


def train_arm(
    arm: Arm,
    folder: Path,
    listeners: Listeners,
    caught: Sequence[int],
    writable: bool = True,
    *,
    trial: int | None = None,
) -> list[list[Row]]:
    """Trains the runs of an arm from its newest checkpoint on.

    Args:
      arm: the arm.
      folder: the arm's folder, in the run's.
      listeners: the functions to call as it goes on.
      caught: numbers of signals; one in it stops the run when the round in progress is saved.
      writable: False for a run on a read-only disk, which must be finished.
      trial: the number of one run to train alone, while others may be trained elsewhere; only its
        checkpoints are written then, and rows are returned when a signal has stopped it, too. A
        call without it finds them, and writes the files of the arm.

    Returns:
      The rows of each run, see `simulation.history`.

    Raises:
      ValueError: weights are gone, or a run that is not finished is on a read-only disk. One line.
      Interrupted: by a signal.
    """
    config, writes = arm.config, writable and is_primary()
    arm = with_noted_lanes(arm, folder.parent / "lanes.json", writes)
    numbers, simulations = _runs(arm, trial)
    writes = writes and trial is None
    place, keep = folder / "checkpoints", config.checkpoint.keep
    checkpointer = TrialCheckpoints(place, simulations, keep, background=True, numbers=numbers)
    states, histories = checkpointer.restore(listeners.warn)
    if not writable:
        _refuse_unfinished(arm.label, folder, _is_finished(states, histories, config))
    stop_if_signalled(caught)
    if not any(histories):
        _prepare_start(arm, folder, listeners, writes)
    if rounds_done(states) < config.rounds:
        _tell_of_compiling(arm, listeners)
    course = Course(arm, folder, checkpointer, listeners, caught, writes, numbers)
    course.programs = environment() | own_code(arm)
    course.saved = rounds_done(states)
    for number, rows in zip(numbers, histories):
        course.divergence[number] = Divergence(arm.dataset.num_classes, rows)
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
    remember_map(arm, simulations[0], reached[0], folder, write=writes, warn=listeners.warn)
    return histories


def _runs(arm: Arm, trial: int | None) -> tuple[Sequence[int], list[Simulation]]:
    """Returns the numbers and the simulations of an arm's runs, or of one of them alone."""
    if trial is None:
        return range(arm.config.trials), simulate_trials(arm)
    return [trial], [simulate(arm, trial)]


def _refuse_unfinished(label: str, folder: Path, is_finished: bool) -> None:
    """Refuses an arm on a read-only disk that has rounds left to do."""
    if not is_finished:
        raise ValueError(f"{folder} cannot be written to, and {label} is not finished")


def _is_finished(
    states: Sequence[SimulationState | None], histories: Sequence[list[Row]], config: Config
) -> bool:
    """Returns True where an arm has no rounds left to do."""
    known = [state for state in states if state is not None]
    is_whole = len(known) == len(states) and all(histories)
    return is_whole and all_done(known, histories, config.rounds, ending_of(config))


def _prepare_start(arm: Arm, folder: Path, listeners: Listeners, writes: bool) -> None:
    """Checks that an arm can start at round 0, and moves aside the results of another course."""
    gone = missing(weights_of_model(arm.config.model))
    if gone:
        raise ValueError(f"no weights at {gone[0]}, which {arm.label} starts from at round 0")
    aside = begin_again(folder) if writes else None
    if aside:
        listeners.warn(
            f"{arm.label}: {folder} has no checkpoint that can be read; it starts again at round "
            f"0, and what was there is now in {aside}"
        )


def _tell_of_compiling(arm: Arm, listeners: Listeners) -> None:
    """Tells of the programs compiled in the first round, in the first process."""
    if not is_primary():
        return
    devices = arm.config.devices or len(jax.devices())
    num_programs = len(arm.federation.buckets)
    programs = "1 architecture" if num_programs == 1 else f"{num_programs} architectures"
    kind = jax.devices()[0].device_kind
    listeners.stage(f"{arm.label}: compiling {programs} for {devices} x {kind}, in the first round")


def with_noted_lanes(arm: Arm, noted: Path, writes: bool) -> Arm:
    """Returns the arm with the lanes that its experiment has noted.

    Where lanes are chosen, a run notes them for each architecture before it first trains it, so
    that it goes on with the same.

    Args:
      arm: the arm.
      noted: a JSON file, architecture -> lanes.
      writes: False notes nothing.
    """
    if arm.options.lanes is not None:
        return arm
    known = read_json(noted) if noted.exists() else {}
    names = {bucket.name for bucket in arm.federation.buckets}
    if not names <= set(known):
        known = lanes_of(arm) | known
        if writes:
            with atomic_open(noted) as file:
                json.dump(known, file, indent=2)
    lanes = {name: known[name] for name in names}
    return arm._replace(options=dataclasses.replace(arm.options, lanes=lanes))
