"""Plays a run, from the start or from the newest checkpoint.

Between rounds it writes rows, saves states, and warns.
"""

import dataclasses
import functools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_ht.core.mesh import usual_devices
from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.report.bad_clients import place_of
from fedjax_ht.lab.report.maps import remember_map
from fedjax_ht.lab.report.plots import image_grid, save
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.folder import agreed, is_primary, read_json, write_json
from fedjax_ht.lab.runs.identity import begin_again, changed_code, remember_rounds
from fedjax_ht.lab.runs.method import ending_of, evaluated_clients
from fedjax_ht.lab.runs.own_methods import own_code
from fedjax_ht.lab.runs.plan import Run
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
      beside: a simulation of the same data, whose samples on the devices are shared.
    """
    data = arranged(run.dataset, run.partitions[trial], run.federation, beside=run.partitions)
    options = dataclasses.replace(run.options, seed=run.options.seed + trial)
    return bound_simulation(
        run.method, run.federation, data, options=options, settings=run.settings, beside=beside
    )


def simulate_trials(run: Run) -> list[Simulation]:
    """Returns the simulations of all trials of a run, which share the samples on the devices."""
    simulations: list[Simulation] = []
    for trial in range(len(run.partitions)):
        simulations.append(simulate(run, trial, beside=simulations[0] if simulations else None))
    return simulations


def lanes_of(run: Run) -> dict[str, int]:
    """Returns architecture -> lanes of a run."""
    counts = np.array([len(client.train) for client in run.partitions[0]])
    return simulation_lanes(run.federation, counts, run.method, run.options)


Notify = Callable[..., Any]
"""Called as a run progresses: notify("row", label, row) with each new row, notify("warn", message)
about trouble, notify("stage", message) when something slow begins."""


def rounds_done(states: Sequence[SimulationState | None]) -> int:
    """Returns the rounds that all runs of an entry have completed; -1 if one has no state."""
    return min(-1 if state is None else state.round for state in states)


def stop_if_signalled(caught: Sequence[int]) -> None:
    """Raises `Interrupted` in every process of a run if any of them has caught a signal."""
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)


def show_server(run: Run, state: SimulationState, folder: Path) -> None:
    """Writes a method's pictures of its server's state, if any, to images/<round>.png."""
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
    notify: Notify,
    caught: Sequence[int],
    writable: bool = True,
    *,
    trial: int | None = None,
) -> list[list[Row]]:
    """Trains the trials of a run, starting from its newest checkpoint.

    Args:
      run: the run.
      folder: its folder, in that of the plan.
      notify: called with rows and messages.
      caught: numbers of caught signals; any of them stops the run once the round in progress is
        saved.
      writable: False for a run on a read-only disk, which must be finished.
      trial: the number of the only trial to train, while others may train elsewhere. Only its
        checkpoints are written, and its rows are returned even if a signal stopped it. A call
        without `trial` finds them, and writes the files of the run.

    Returns:
      The rows of each trial, see `simulation.history`.

    Raises:
      ValueError: weights are missing, or an unfinished run is on a read-only disk. One line.
      Interrupted: a signal stopped the run.
    """
    config, label, writes = run.config, run.label, writable and is_primary()
    run = with_noted_lanes(run, folder.parent / "lanes.json", writes)
    if trial is None:
        numbers, simulations = range(config.trials), simulate_trials(run)
    else:
        numbers, simulations = [trial], [simulate(run, trial)]
    writes = writes and trial is None
    warn, keep = functools.partial(notify, "warn"), config.checkpoint.keep
    checkpointers = []
    for number, simulation in zip(numbers, simulations):
        checkpointers.append(
            Checkpointer(folder / "checkpoints", simulation, keep, background=True, trial=number)
        )
    # runs may be at different rounds if a process was killed while it saved them
    restored = [checkpointer.restore(warn) or (None, []) for checkpointer in checkpointers]
    states, histories = [state for state, _ in restored], [history for _, history in restored]
    known = [state for state in states if state is not None]
    is_done = len(known) == len(states) and all(histories)
    is_done = is_done and all_done(known, histories, config.rounds, ending_of(config))
    if not writable and not is_done:
        raise ValueError(f"{folder} cannot be written to, but {label} is not finished")
    code = own_code(run)
    programs = environment() | code
    if writes:
        for file in changed_code(folder, code):
            warn(
                f"{label}: {file} has changed since it trained this entry, and finished rounds are "
                "not trained again; choose another --workdir to start anew"
            )
    stop_if_signalled(caught)
    if not any(histories):
        _prepare_start(run, folder, warn, writes)
    if rounds_done(states) < config.rounds and is_primary():
        notify("stage", _compiling(run, rounds_done(states)))
    trouble = _trouble_of(run, simulations[0].num_classes, numbers, histories)
    saved, written = rounds_done(states), 0  # round of the newest checkpoint; rows in the files

    def write(histories: list[list[Row]]) -> None:
        nonlocal written
        if writes:
            written = write_runs(histories, folder, written)

    def save(states: list[SimulationState], histories: list[list[Row]]) -> None:
        nonlocal saved
        for checkpointer, state, history in reversed(list(zip(checkpointers, states, histories))):
            checkpointer.save(state, history)
        saved = rounds_done(states)
        if is_primary() and 0 in numbers:
            show_server(run, states[0], folder)
            if writes:
                remember_rounds(folder, saved, programs)

    def show(row: Row) -> None:
        if is_primary():
            notify("row", label, row)
        for line in trouble(row):
            warn(f"{place_of(label, row, config.trials)}: {line}")
        if row["round"] == 0 and row["trial"] == numbers[-1]:
            # the untrained federation has been evaluated; compiling the first round may take long
            stop_if_signalled(caught)

    def after_round(states: list[SimulationState], histories: list[list[Row]]) -> bool:
        stop, round = agreed(bool(caught)), rounds_done(states)
        if any(state.round > round for state in states):
            return stop  # keeps what a killed process had already saved of some trials
        write(histories)
        for checkpointer in checkpointers:
            checkpointer.check()
        if round % config.checkpoint.every == 0 or stop:
            save(states, histories)
        return stop

    reached, histories = run_each(
        simulations,
        config.rounds,
        states,
        histories=histories,
        eval_every=config.evaluate.every,
        ending=ending_of(config),
        numbers=numbers,
        progress_fn=show,
        after_round=after_round,
        only=evaluated_clients(config),
        score_every=config.evaluate.participants,
    )
    if rounds_done(reached) != saved:
        save(reached, histories)
    for checkpointer in checkpointers:
        checkpointer.wait()
    if writes:  # the last process may have ended between a checkpoint and this record
        remember_rounds(folder, rounds_done(reached), programs)
    if trial is not None:
        return histories
    write(histories)
    stop_if_signalled(caught)
    remember_map(run, simulations[0], reached[0], folder, write=writes, warn=warn)
    return histories


def _trouble_of(
    run: Run, num_classes: int | None, numbers: Sequence[int], histories: Sequence[list[Row]]
) -> Callable[[Row], list[str]]:
    """Returns a function that lists the troubles of a new row.

    It repeats no warning of the method within a trial.
    """
    warn_of, warned = run.method.view.warn, set()
    divergence = {}
    for number, rows in zip(numbers, histories):
        divergence[number] = Divergence(num_classes, rows)

    def trouble(row: Row) -> list[str]:
        warning = warn_of(row) if warn_of and row["round"] else None
        lines = []
        if warning and (row["trial"], warning) not in warned:
            warned.add((row["trial"], warning))
            lines.append(warning)
        return [*lines, *divergence[row["trial"]].notes(row)]

    return trouble


def _prepare_start(run: Run, folder: Path, warn: Callable[[str], None], writes: bool) -> None:
    """Checks that a run can start at round 0, and moves aside the results of another course."""
    gone = missing(weights_of_model(run.config.model))
    if gone:
        raise ValueError(f"no weights at {gone[0]}, which {run.label} starts from at round 0")
    aside = begin_again(folder) if writes else None
    if aside:
        warn(
            f"{run.label}: {folder} has no readable checkpoint; it restarts at round "
            f"0, and its old files are now in {aside}"
        )


def _compiling(run: Run, done: int) -> str:
    """Describes the programs that the first round compiles, after `done` rounds; -1 before any."""
    devices = run.config.devices or usual_devices()
    num_programs = len(run.federation.buckets)
    programs = "1 architecture" if num_programs == 1 else f"{num_programs} architectures"
    kind = jax.devices()[0].device_kind
    resumes = f"resumes after round {done}, " if done >= 0 else ""
    return f"{run.label}: {resumes}compiling {programs} for {devices} x {kind}, in the first round"


def with_noted_lanes(run: Run, noted: Path, writes: bool) -> Run:
    """Returns the run with the lanes recorded for its experiment.

    If lanes are chosen automatically, a run records them for each architecture before the first
    training, so that it resumes with the same.

    Args:
      run: the run.
      noted: a JSON file, architecture -> lanes.
      writes: False records nothing.
    """
    if run.options.lanes is not None:
        return run
    known = read_json(noted) if noted.exists() else {}
    names = {bucket.name for bucket in run.federation.buckets}
    if not names <= set(known):
        known = lanes_of(run) | known
        if writes:
            write_json(noted, known)
    lanes = {name: known[name] for name in names}
    return run._replace(options=dataclasses.replace(run.options, lanes=lanes))
