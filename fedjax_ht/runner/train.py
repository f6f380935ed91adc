"""Trains and evaluates what a config describes, from the start or from where a run in the same
folder stopped."""

import dataclasses
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.checkpoints.writers import FILES, write_history
from fedjax_ht.core.files import atomic_open
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.experiment.build import Experiment, build, evaluated_clients
from fedjax_ht.experiment.devices import files_of
from fedjax_ht.experiment.entries import as_run
from fedjax_ht.experiment.run_folder import fingerprints, read_json, remember_config, start_again
from fedjax_ht.experiment.run_lock import agreed, is_primary, locked
from fedjax_ht.experiment.weights import checksums, missing
from fedjax_ht.report import plots
from fedjax_ht.report.bad_clients import place_of, why_silent
from fedjax_ht.report.costs import Aim
from fedjax_ht.report.document import Document
from fedjax_ht.report.map_plot import write_maps
from fedjax_ht.report.maps import remember_map
from fedjax_ht.report.page import Page, results, text_of, write_page
from fedjax_ht.report.report import write_report
from fedjax_ht.report.setting import repeat, setting
from fedjax_ht.runner.signals import catch_signals
from fedjax_ht.simulation.history import Row, by_trial, is_over, run_rounds
from fedjax_ht.simulation.simulation import Simulation, SimulationState, make_trials
from fedjax_ht.simulation.trials import of_trial

DRAWING = "drawing plots and maps (without: --config.report.maps=none)"
JOIN_SECONDS = 60
"""How long the processes of a run wait for each other."""

ProgressFn = Callable[[str, Row], None]  # (method, new row)


class Interrupted(Exception):
    """The run was told to stop, and has saved. `signal` is the number of the signal."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Alone(OSError):
    """The processes of a run have not met. What waits for the others ends with the program."""


class GaveUp(Exception):
    """Nothing arrived any more in a run, which has saved and written its results. One line."""


class Unwritable(OSError):
    """What a run had to write after it had begun could not be written."""


class Result(NamedTuple):
    """What a run has made.

    Attributes:
      histories: label -> rows, see `simulation.history`.
      summary: the result in a sentence, warnings and tables, as Markdown.
      files: what was written; nothing where a finished run was shown from a read-only folder.
      experiment: what was run.
    """

    histories: dict[str, list[Row]]
    summary: str
    files: list[Path]
    experiment: Experiment


def train_and_evaluate(
    config: ConfigDict,
    workdir: Path | str,
    progress_fn: ProgressFn | None = None,
    warn: Callable[[str], None] = print,
    stage: Callable[[str], None] = lambda line: None,
    aim: Aim | None = None,
    show_result: Callable[[Document], None] = lambda text: None,
) -> Result:
    """Runs every method of the config on one split and writes metrics, checkpoints, a table, plots
    and a page below `workdir`. With an `aim` the first table is a comparison's, of what reaching an
    accuracy cost.

    Under `jax.distributed` every process makes the same call, and the first of them writes;
    `workdir` must be a folder that all of them see.

    A second call with the same config goes on where the first stopped. SIGINT and SIGTERM let the
    round in progress finish, save, and raise `Interrupted`. Of a finished run in a read-only folder
    the result is shown.

    `stage` is told what begins, a line each: the run, every entry that has rounds to do, and
    drawing. `show_result` is given the summary before anything is drawn, which may take minutes.

    Raises:
      ValueError, OSError: the config is wrong, or `workdir` cannot be used: another process does,
        or it holds a run of another config or on other data. One line each.
      Unwritable: the disk is full, say, after the run has begun; the last checkpoint is whole. One
        line.
      GaveUp: in an entry nothing arrived for `give_up` rounds in a row; the others have run to
        their end.
    """
    workdir = Path(workdir)
    experiment = build(config, begun=(workdir / "config.json").exists())
    with locked(workdir, warn) as writable:
        writes = writable and is_primary()
        weights = [as_run(entry, config).model.weights for entry in experiment.entries.values()]
        sums = checksums([*weights, *files_of(config.devices_profile)])
        prints = fingerprints(experiment.dataset, experiment.partitions) | {"weights": sums}
        remember_config(config, experiment.entries.values(), workdir, prints, writes)
        page = Page(tuple(experiment.entries), aim, repeat())
        if writes:
            write_page(page, workdir)
        folders = {name: workdir / entry.folder for name, entry in experiment.entries.items()}
        for folder in folders.values() if writes else ():
            folder.mkdir(exist_ok=True)
        if is_primary():
            stage(
                f"{setting(config, experiment)} "
                f"{'Writing to' if writable else 'Nothing is written to'} {workdir}."
            )
        histories: dict[str, list[Row]] = {}
        tell = warn if is_primary() else lambda line: None
        try:
            with catch_signals() as caught, jax.default_matmul_precision(config.precision):
                for name, folder in folders.items():
                    histories[name] = run_method(
                        name, experiment, config, folder, progress_fn, tell, stage, caught, writable
                    )
            summary = text_of(histories, experiment.entries.values(), aim)
            if is_primary():
                show_result(summary)
            pictures = []
            if writes:
                with_maps = config.report.maps != "none"
                stage(DRAWING if with_maps else "drawing plots")
                pictures = write_results(config, experiment, histories, page, workdir, tell)
        except OSError as error:
            raise Unwritable(
                f"{error}; what was saved before is whole, and the same command goes on from there"
            ) from error
    if lost := [
        line for name in histories if (line := why_silent(name, histories[name], config.give_up))
    ]:
        raise GaveUp(". ".join(lost))
    files = [folder / file for folder in folders.values() for file in (*FILES, "checkpoints")]
    files = [workdir / "config.json", workdir / "summary.md", *files, *pictures]
    return Result(histories, summary.markdown(), files if writable else [], experiment)


def write_results(
    config: ConfigDict,
    experiment: Experiment,
    histories: Mapping[str, list[Row]],
    page: Page,
    workdir: Path,
    warn: Callable[[str], None],
) -> list[Path]:
    """Writes the summary, plots and report of a run; returns the paths of the pictures and of the
    report."""
    entries = [experiment.entries[label] for label in histories]
    with atomic_open(workdir / "summary.md") as file:
        file.write(text_of(histories, entries, aim=None).markdown() + "\n")
    pictures = plots.write_plots(histories, experiment.dataset, experiment.partitions[0], workdir)
    if config.report.maps != "none":
        folders = {entry.label: workdir / entry.folder for entry in entries}
        pictures += write_maps(folders, experiment, warn)
    first = results(histories, page.aim)
    return [*pictures, write_report(config, experiment, histories, first, workdir, page.command)]


def simulate(
    name: str, experiment: Experiment, lanes: Mapping[str, int] | None = None
) -> Simulation:
    """One entry's simulation, of all trials. `lanes` are given where "auto" was asked for and an
    earlier call has chosen."""
    method, federation = experiment.methods[name], experiment.federations[name]
    data = [
        make_federation_data(experiment.dataset, partition, federation)
        for partition in experiment.partitions
    ]
    options = dataclasses.replace(experiment.options, lanes=lanes) if lanes else experiment.options
    return make_trials(method, federation, data, options)


def with_noted_lanes(name: str, experiment: Experiment, noted: Path, writes: bool) -> Simulation:
    """One entry's simulation; where "auto" chooses lanes, with those that this run has noted for an
    architecture, and what is new noted."""
    if experiment.options.lanes != "auto":
        return simulate(name, experiment)
    known = read_json(noted) if noted.exists() else {}
    names = {bucket.name for bucket in experiment.federations[name].buckets}
    if names <= set(known):
        return simulate(name, experiment, {bucket: known[bucket] for bucket in names})
    simulation = simulate(name, experiment)
    if writes:
        with atomic_open(noted) as file:
            json.dump(simulation.lanes | known, file, indent=2)
    lanes = simulation.lanes | {bucket: known[bucket] for bucket in names & set(known)}
    return simulation if lanes == simulation.lanes else simulate(name, experiment, lanes)


def run_method(
    name: str,
    experiment: Experiment,
    config: ConfigDict,
    workdir: Path,
    progress_fn: ProgressFn | None,
    warn: Callable[[str], None],
    stage: Callable[[str], None],
    caught: list[int],
    writable: bool,
) -> list[Row]:
    """One method from its newest checkpoint on; returns its history."""
    writes = writable and is_primary()
    simulation = with_noted_lanes(name, experiment, workdir.parent / "lanes.json", writes)
    checkpointer = make_checkpointer(
        workdir / "checkpoints", simulation, config.checkpoint.keep, background=True
    )
    state, history = checkpointer.restore(warn) or (None, [])
    saved, written = state.round if history else -1, 0
    ends = {"patience": config.evaluate.patience or None, "give_up": config.give_up or None}
    if not writable and not (history and is_finished(state.round, history, config.rounds, **ends)):
        raise ValueError(f"{workdir} cannot be written to, and {name} is not finished")
    stop_if_told(caught)
    if state is None and (gone := missing(as_run(experiment.entries[name], config).model.weights)):
        raise ValueError(f"no weights at {gone[0]}, which {name} starts from at round 0")
    if state is None and writes and (aside := start_again(workdir)):
        warn(
            f"{name}: {workdir} has no checkpoint that can be read; it starts again at round 0, "
            "and what was there is "
            f"now in {aside}"
        )
    if is_primary() and (state is None or state.round < config.rounds):
        devices, programs = (
            config.devices or len(jax.devices()),
            len(experiment.federations[name].buckets),
        )
        where = f"{devices} x {jax.devices()[0].device_kind}"
        stage(
            f"{name}: compiling {programs} architecture{'s' * (programs > 1)} for {where}, in the "
            "first round"
        )

    def write(history) -> None:
        nonlocal written
        if writes:
            written = write_history(history, workdir, written)

    def save(state, history) -> None:
        nonlocal saved
        checkpointer.save(state, history)
        if is_primary():
            show_server(name, experiment, state, workdir)
        saved = state.round

    warned: set[tuple[int, str]] = set()

    def show(row: Row) -> None:
        if progress_fn is not None and is_primary():
            progress_fn(name, row)
        method = experiment.methods[name]
        warning = method.view.warn(row) if method.view.warn and row["round"] else None
        if warning and (row["trial"], warning) not in warned:
            warned.add((row["trial"], warning))
            warn(f"{place_of(name, row, config.trials)}: {warning}")
        if row["round"] == 0 and row["trial"] == config.trials - 1:
            # the untrained federation is evaluated; the first round may compile for long
            stop_if_told(caught)

    def after_round(state, history) -> bool:
        write(history)
        stop = agreed(bool(caught))
        if state.round % config.checkpoint.every == 0 or stop:
            save(state, history)
        return stop

    state, history = run_rounds(
        simulation,
        config.rounds,
        state,
        history,
        config.evaluate.every,
        progress_fn=show,
        after_round=after_round,
        only=evaluated_clients(config),
        score_every=config.evaluate.participants,
        **ends,
    )
    if state.round != saved:
        save(state, history)
    checkpointer.wait()
    write(history)
    stop_if_told(caught)
    if config.report.maps != "none":
        remember_map(name, experiment, simulation, state, workdir, writable and is_primary(), warn)
    return history


def stop_if_told(caught: list[int]) -> None:
    """Raises `Interrupted` in every process of a run, if any was told to stop."""
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)


def is_finished(
    round: int, history: list[Row], rounds: int, patience: int | None, give_up: int | None
) -> bool:
    """Whether a run that has come to a round has none left to do."""
    return round >= rounds or all(is_over(trial, patience, give_up) for trial in by_trial(history))


def show_server(name: str, experiment: Experiment, state: SimulationState, workdir: Path) -> None:
    """Writes what a method's server shows of its state, of the first trial, to images/<round>.png,
    if anything."""
    method = experiment.methods[name]
    if method.view.pictures is None:
        return
    first = of_trial(state.servers, 0)
    blocks = jax.tree.map(np.asarray, method.view.pictures(experiment.federations[name], first))
    plots.save(
        plots.image_grid(blocks, experiment.dataset.class_names),
        workdir / "images" / f"{state.round:05d}.png",
    )


def enable_compilation_cache(folder: Path | str | None = None) -> None:
    """Keeps compiled programs on disk between runs, below the user's cache folder unless told
    where."""
    folder = Path(folder) if folder else Path.home() / ".cache" / "fedjax_ht" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def use_all_cores() -> None:
    """One CPU device a core, at most eight: whole clients in parallel instead of threads inside
    small products, which is up to 1.6 times faster (benchmarks/results/zoo_cpu.md). It must come
    before any computation; accelerators stay as they are.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jax.config.update("jax_num_cpu_devices", min(cores, 8))


def join_processes(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    seconds: float = JOIN_SECONDS,
) -> None:
    """Connects this process to the others of a run, before any computation; without a coordinator
    it runs alone, on all cores.

    Raises:
      ValueError: the three do not fit together.
      Alone: the processes have not all met at the coordinator after so many seconds.
      OSError: they cannot.
    """
    given = [value is not None for value in (coordinator, processes, process)]
    if not any(given):
        use_all_cores()
        return
    if not all(given) or not 0 <= process < processes:
        raise ValueError(
            f"coordinator={coordinator}, processes={processes}, process={process}: give all "
            "three, process from 0 to "
            "processes - 1"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"coordinator is {coordinator!r}; it must be HOST:PORT, such as localhost:1234"
        )
    if process == 0:
        check_port(int(port))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    failed: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                coordinator, processes, process, initialization_timeout=int(seconds) + 3600
            )
        except Exception as error:
            failed.append(error)

    # At its own timeout jax aborts the process from C++, with a core dump: so another thread waits
    # there.
    waiting = threading.Thread(target=connect, daemon=True)
    waiting.start()
    waiting.join(seconds)
    if waiting.is_alive():
        raise Alone(
            f"the {processes} processes have not met at {coordinator} after {seconds:g} s (this "
            f"is process {process}); "
            "start all of them with the same --coordinator, an address of process 0 that the "
            "others reach"
        )
    if failed:
        raise ConnectionError(f"coordinator {coordinator}: {failed[0]}") from failed[0]


def check_port(port: int) -> None:
    """OSError where no server can listen on a port of this machine: jax's would end in a
    segmentation fault."""
    family, everywhere = (socket.AF_INET6, "::") if socket.has_ipv6 else (socket.AF_INET, "0.0.0.0")
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((everywhere, port))
        except OSError as error:
            raise OSError(
                f"process 0 cannot listen on port {port} of this machine: {error.strerror}"
            ) from error
