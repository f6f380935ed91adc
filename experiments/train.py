"""Trains and evaluates what a config describes, from the start or from where a run in the same folder stopped."""

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from experiments import plots, table
from experiments.build import Experiment, build, evaluated_clients
from experiments.entries import Entry, described
from experiments.map_plot import write_maps
from experiments.maps import remember_map
from experiments.report import setting, write_report
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.io.checkpoint import make_checkpointer
from fedjax_ht.io.files import atomic_open
from fedjax_ht.io.writers import write_history
from fedjax_ht.simulation.history import Row, run
from fedjax_ht.simulation.simulation import Simulation, SimulationState, make_trials
from fedjax_ht.simulation.trials import of_trial

# Fields that say which entries there are, and with what: those are recorded one by one.
NAMING = ("method", "compare", "entries", "given", "tuned", "tuned_on")
# Fields that change nothing about the numbers of a round: a run may go on with others.
FREE_FIELDS = (
    "rounds",
    "checkpoint.every",
    "checkpoint.keep",
    "dataset.data_dir",
    "devices",
    "client_store",
)

ProgressFn = Callable[[str, Row], None]  # (method, new row)
Tables = Callable[[Mapping[str, list[Row]]], Mapping[str, str]]  # (histories) -> heading -> Markdown


class Interrupted(Exception):
    """The run was told to stop, and has saved. `signal` is the number of the signal."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Result(NamedTuple):
    """histories: label -> rows, see `simulation.history`. summary: the table, as text. files: what was written.
    experiment: what was run."""

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
    tables: Tables = lambda histories: {"Results": table.markdown(histories)},
) -> Result:
    """Runs every method of the config on one split and writes metrics, checkpoints, a table, plots and a page below
    `workdir`. `tables` are the first of the page, by heading.

    Under `jax.distributed` every process makes the same call, and the first of them writes; `workdir` must be a folder
    that all of them see.

    A second call with the same config goes on where the first stopped. SIGINT and SIGTERM let the round in progress
    finish, save, and raise `Interrupted`.

    `stage` is told what begins, a line each: the run, and every entry that has rounds to do.

    Raises:
      ValueError, FileNotFoundError: the config is wrong, or `workdir` holds a run of another config. One line each.
    """
    workdir = Path(workdir)
    experiment = build(config)
    remember_config(config, experiment.entries.values(), workdir)
    if is_primary():
        stage(f"{setting(config, experiment)} Writing to {workdir}.")
    histories: dict[str, list[Row]] = {}
    folders = {name: workdir / entry.folder for name, entry in experiment.entries.items()}
    with catch_signals() as caught, jax.default_matmul_precision(config.precision):
        for name in experiment.methods:
            histories[name] = run_method(name, experiment, config, folders[name], progress_fn, warn, stage, caught)
    results, pictures = table.markdown(histories), []
    summary = f"{results}\n\n{described(experiment.entries.values())}"
    if is_primary():
        with atomic_open(workdir / "summary.md") as file:
            file.write(summary + "\n")
        pictures = plots.write_plots(histories, experiment.dataset, experiment.partitions[0], workdir)
        pictures += write_maps(folders, experiment)
        pictures.append(write_report(config, experiment, histories, tables(histories), workdir))
    files = [folder / f for folder in folders.values() for f in ("metrics.csv", "metrics.jsonl", "clients.csv")]
    files += [folder / "checkpoints" for folder in folders.values()]
    files = [workdir / "config.json", workdir / "summary.md", *files, *pictures]
    return Result(histories, summary, files, experiment)


def simulate(name: str, experiment: Experiment, lanes: Mapping[str, int] | None = None) -> Simulation:
    """One entry's simulation, of all trials. `lanes` are given where "auto" was asked for and an earlier call has
    chosen."""
    method, federation = experiment.methods[name], experiment.federations[name]
    data = [make_federation_data(experiment.dataset, partition, federation) for partition in experiment.partitions]
    options = dataclasses.replace(experiment.options, lanes=lanes) if lanes else experiment.options
    return make_trials(method, federation, data, options)


def is_primary() -> bool:
    """Whether this process is the one that writes and speaks."""
    return jax.process_index() == 0


def agreed(stop: bool) -> bool:
    """Whether any process was told to stop; they then all stop in the same round."""
    return bool(np.any(multihost_utils.process_allgather(np.array(stop)))) if jax.process_count() > 1 else stop


def run_method(
    name: str,
    experiment: Experiment,
    config: ConfigDict,
    workdir: Path,
    progress_fn: ProgressFn | None,
    warn: Callable[[str], None],
    stage: Callable[[str], None],
    caught: list[int],
) -> list[Row]:
    """One method from its newest checkpoint on; returns its history."""
    chosen = workdir.parent / "lanes.json"
    simulation = simulate(name, experiment, read_json(chosen) if chosen.exists() else None)
    if experiment.options.lanes == "auto" and not chosen.exists() and is_primary():
        with atomic_open(chosen) as file:
            json.dump(simulation.lanes, file, indent=2)
    checkpointer = make_checkpointer(workdir / "checkpoints", simulation, config.checkpoint.keep, background=True)
    state, history = checkpointer.restore(warn) or (None, [])
    saved, written = state.round if history else -1, 0
    if is_primary() and (state is None or state.round < config.rounds):
        devices, programs = config.devices or len(jax.devices()), len(experiment.federations[name].buckets)
        where = f"{devices} x {jax.devices()[0].device_kind}"
        stage(f"{name}: compiling {programs} architecture{'s' * (programs > 1)} for {where}, in the first round")

    def write(history) -> None:
        nonlocal written
        if is_primary():
            written = write_history(history, workdir, written)

    def save(state, history) -> None:
        nonlocal saved
        checkpointer.save(state, history)
        if is_primary():
            show_server(name, experiment, state, workdir)
        saved = state.round

    told: set[str] = set()

    def tell(row: Row) -> None:
        line = experiment.methods[name].warn and experiment.methods[name].warn(row)
        if line and line not in told and is_primary():
            told.add(line)
            warn(f"{name}, round {row['round']}: {line}")

    def after_round(state, history) -> bool:
        write(history)
        tell(history[-1])
        stop = agreed(bool(caught))
        if state.round % config.checkpoint.every == 0 or stop:
            save(state, history)
        return stop

    state, history = run(
        simulation,
        experiment.methods[name],
        config.rounds,
        state,
        history,
        config.evaluate.every,
        config.evaluate.patience or None,
        (lambda row: progress_fn(name, row)) if progress_fn is not None and is_primary() else None,
        after_round,
        only=evaluated_clients(config),
    )
    if state.round != saved:
        save(state, history)
    checkpointer.wait()
    write(history)
    if agreed(bool(caught)):
        raise Interrupted(caught[0] if caught else signal.SIGTERM)
    remember_map(name, experiment, simulation, state, workdir, is_primary(), warn)
    return history


def show_server(name: str, experiment: Experiment, state: SimulationState, workdir: Path) -> None:
    """Writes what a method's server shows of its state, of the first trial, to images/<round>.png, if anything."""
    method = experiment.methods[name]
    if method.pictures is None:
        return
    first = of_trial(state.servers, 0)
    blocks = jax.tree.map(np.asarray, method.pictures(experiment.federations[name], first))
    plots.save(plots.image_grid(blocks, experiment.dataset.class_names), workdir / "images" / f"{state.round:05d}.png")


def remember_config(config: ConfigDict, entries: Iterable[Entry], workdir: Path) -> None:
    """Writes config.json, with every entry that the folder holds, or refuses one that holds a run of another config."""
    path, fields = workdir / "config.json", json.loads(config.to_json_best_effort())
    own = {entry.label: json.loads(json.dumps(entry._asdict())) for entry in entries}
    there: dict[str, Any] = {}
    if path.exists():
        earlier = read_json(path)
        there = {entry["label"]: entry for entry in earlier.get("entries", ())}
        before, now = _compared(earlier, there, own), _compared(fields, own, there)
        differing = [f for f in sorted(before | now) if before.get(f) != now.get(f) and f not in FREE_FIELDS]
        if differing:
            shown = ", ".join(f"{f}: {before.get(f)!r} there, {now.get(f)!r} here" for f in differing[:5])
            raise ValueError(f"{workdir} holds a run of another config ({shown}); choose another --workdir")
    if is_primary():
        with atomic_open(path) as file:
            json.dump(fields | {"entries": list((there | own).values())}, file, indent=2)


def _compared(fields: dict[str, Any], entries: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in a run that goes on: fields, and the settings of entries that are among `others`, too."""
    shared = {name: value for name, value in fields.items() if name not in NAMING}
    both = {label: entry | {"tuned": ""} for label, entry in entries.items() if label in others}
    return flatten(shared | both)


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run's folder holds, or a ValueError."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); choose another --workdir") from None


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


class catch_signals:
    """Within the block SIGINT and SIGTERM are noted in the list; a second one of the same kind acts as usual."""

    def __enter__(self) -> list[int]:
        self.caught: list[int] = []
        self.previous: dict[int, Any] = {}

        def note(number, frame):
            self.caught.append(number)
            signal.signal(number, self.previous[number])

        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, note)
        except ValueError:  # not the main thread (a notebook's worker): signals stay as they are
            self.previous.clear()
        return self.caught

    def __exit__(self, *error) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def enable_compilation_cache(folder: Path | str | None = None) -> None:
    """Keeps compiled programs on disk between runs, below the user's cache folder unless told where."""
    folder = Path(folder) if folder else Path.home() / ".cache" / "fedjax_ht" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def use_all_cores() -> None:
    """One CPU device a core, at most eight: whole clients in parallel instead of threads inside small products, which
    is up to 1.6 times faster (benchmarks/results/zoo_cpu.md). It must come before any computation; accelerators stay as
    they are.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jax.config.update("jax_num_cpu_devices", min(cores, 8))


def join_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Connects this process to the others of a run, before any computation; without a coordinator it runs alone, on
    all cores.

    Raises:
      ValueError: the three do not fit together.
    """
    given = [value is not None for value in (coordinator, processes, process)]
    if not any(given):
        use_all_cores()
        return
    if not all(given) or not 0 <= process < processes:
        raise ValueError(
            f"coordinator={coordinator}, processes={processes}, process={process}: give all three, process from 0 to "
            "processes - 1"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, processes, process)
