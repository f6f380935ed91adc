"""Saves and restores runs, bit for bit, with incremental checkpoints.

The newest few are kept.

A run's initial client states are a pure function of its config and seed, so that unchanged clients
are not stored. A checkpoint writes the states that changed since its base checkpoint as a segment,
a folder (`segments`). Beside it lies the small rest: server, history, and for every client the
segment with its newest state. Restoring takes `simulation.init()` and overwrites it with the states
of the segments.

With two or more checkpoints kept, each builds on the last but one before it. It builds on none if
its process has neither written nor read that one. Two in a row thus share no file, so that no
single damage destroys both. If few clients change between checkpoints, this writes up to twice the
bytes, and keeps up to four times the states that have ever changed. If all change, it costs not a
byte more.

Every folder holds the checksums of its files, and a checkpoint those of its segments (`sealed`).
They are verified before anything is read. Unreadable checkpoints are skipped, and moved aside when
the run resumes; they are never deleted.
"""

import contextlib
import importlib.metadata
import json
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.core.keys import OtherGenerator, check_generator, random_generator
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.checkpoints import sealed, segments
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import PASSING, is_caused_by
from fedjax_ht.lab.version import library_version
from fedjax_ht.simulation.history import check_start
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState

_LOGGER = logging.getLogger(__name__)

CHAINS = 2  # checkpoints in a row that share no segment
COPIED_BYTES = 4 << 30  # beyond this, the run waits until all is written
# larger checkpoints are cut into segments, so that host memory needs no second copy of all states
SEGMENT_BYTES = 64 << 20

RANDOM = "random.json"
"""File of a checkpoint with the settings of the run's random generator."""
SUMS = "simulation.json"
"""File of a checkpoint that `save` wrote, with the checksums of its simulation."""
SMALL = "small"
"""Folder of a checkpoint with its `_small`."""


class OtherSimulation(ValueError):
    """A checkpoint was saved from another simulation than the one that reads it. One line."""


class Checkpointer:
    """Saves and restores a run: checkpoints in `directory` and "`directory`.segments".

    Args:
      directory: folder of the checkpoints, one folder each, named by its round.
      simulation: the simulation of the run.
      keep: number of newest checkpoints to keep; at least 1.
      background: True writes in a thread while the run continues. The run still waits with several
        processes, or with more than `COPIED_BYTES` to write.
      trial: number of the run among those of its entry; if not 0, the folder's name ends in it.
      sums: checksums of the simulation, see `program.simulation_sums`, to store in a checkpoint and
        to compare with; None for a run whose folder has an identity.
    """

    def __init__(
        self,
        directory: Path | str,
        simulation: Simulation,
        keep: int = 2,
        *,
        background: bool = False,
        trial: int = 0,
        sums: Mapping[str, str] | None = None,
    ):
        self._sums = sums
        self._directory = of_trial(Path(directory).absolute(), trial)
        self._segments = segments.beside(self._directory)
        self._simulation, self._keep = simulation, keep
        self._chains = min(keep, CHAINS)
        # of the newest checkpoints that this object saved or read
        self._placements: list[segments.Placement] = []
        self._reached = -1  # round of the last of them
        threaded = background and jax.process_count() == 1
        self._pool = ThreadPoolExecutor(1, "checkpoint") if threaded else None
        self._writing: Future | None = None

    def save(self, state: SimulationState, history: Sequence[Row]) -> None:
        """Writes a checkpoint, atomically, named by the state's round.

        Returns when all is on disk; in the background, as soon as the changed states are copied.
        The next `save`, `check` or `wait` raises errors of a background write. Saving the round
        that was saved or restored last does nothing. Later checkpoints than that belong to
        another course of the run, e.g. skipped damaged ones. They are moved aside.
        """
        self.wait()
        if self._reached > state.round:
            self._placements, self._reached = [], -1
        base = self._base(state)
        parts, size = changed_states(self._simulation, state, base)
        small = jax.tree.map(segments.plain, state._replace(clients={}))
        small, history = small._replace(round=state.round), list(history)
        if self._pool is None or size > COPIED_BYTES:
            self._write(small, history, parts, base)
        else:
            # list() reads all states now, before the run changes them
            self._writing = self._pool.submit(self._write, small, history, list(parts), base)

    def wait(self) -> None:
        """Waits until everything saved is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raises the error of a background write since the last call, without waiting."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def restore(
        self, warn: Callable[[str], None] = _LOGGER.warning
    ) -> tuple[SimulationState, list[dict]] | None:
        """Returns the newest readable state and its history; None if there is none.

        An unreadable checkpoint is skipped with a one-line message to `warn`, and the one before it
        is tried. On another kind of device than it was saved on, initial states may differ in their
        last bit.

        Raises:
          OtherGenerator: this process draws other random numbers than the run. Clients that never
            took part are in no checkpoint, and would get other states.
          OtherSimulation: the checkpoint is of a simulation with other sums.
          OSError: a temporary failure, such as too many open files; see `PASSING`.
        """
        self.wait()
        for step in reversed(sealed.numbers(self._directory)):
            path = self._directory / str(step)
            try:
                if self._sums is not None:
                    check_sums(path, self._sums)
                state, placed, history = read(path, self._simulation)
            except (OtherGenerator, OtherSimulation):
                raise
            # any other error: an older checkpoint may be intact
            except Exception as error:
                if is_caused_by(error, PASSING):
                    raise  # the checkpoint may be intact, and skipping it would repeat training
                lines = str(error).splitlines()
                reason = lines[0][:300] if lines else type(error).__name__
                warn(f"checkpoint {path} cannot be read ({reason}); trying the previous one")
                continue
            self._placements, self._reached = [placed], step
            return state, history
        return None

    def follow(self, history: Sequence[dict], round: int) -> None:
        """Marks the newest checkpoint with the first rows of `history` as the one to resume from.

        It is from before `round`. Its states are not read. Later ones belong to another course of
        the run.
        """
        self.wait()
        for step in reversed([n for n in sealed.numbers(self._directory) if n < round]):
            with contextlib.suppress(OSError, ValueError):  # damaged: its course is unknown
                past = sealed.read_json(self._directory / str(step), "history.json")
                if json.dumps(past) == json.dumps(history[: len(past)]):  # equal also where NaN
                    self._placements, self._reached = [], step
                    return

    def _base(self, state: SimulationState) -> segments.Placement:
        """Returns the placement that the next checkpoint builds on, or an empty one."""
        if len(self._placements) == self._chains:
            base = self._placements[0]
            # segments may have been deleted during the run
            if all((self._segments / str(segment)).exists() for segment in base.held):
                return base
        where = {name: np.zeros(len(x), np.int32) for name, x in state.changed.items()}
        return segments.Placement(-1, where, {})

    def _write(
        self,
        state: SimulationState,
        history: Sequence[Row],
        parts: Iterable[segments.Part],
        base: segments.Placement,
    ) -> None:
        """Writes a checkpoint from host memory: a state without clients' states, and these."""
        directory, is_first, round = self._directory, jax.process_index() == 0, state.round
        if round == self._reached and round in sealed.numbers(directory):
            return
        if is_first:
            make_room(directory, self._reached)
        _together("room for a checkpoint")
        placed = segments.write(self._segments, parts, round, base)
        path = directory / str(round)
        half = sealed.temporary(path)
        segments.save_tree(half / SMALL, _small(state, placed.where))
        if is_first:
            held = segments.with_seals(self._segments, placed.held)
            sealed.write_json(half / "segments.json", held)
            sealed.write_json(half / "history.json", history)
            sealed.write_json(half / RANDOM, random_generator())
            if self._sums is not None:
                sealed.write_json(half / SUMS, {"sums": self._sums, "versions": _versions()})
            sealed.place(path)
            # The checkpoint is in place. What cannot be deleted now is deleted with the next one,
            # or named in its error.
            with contextlib.suppress(OSError):
                for step in sealed.numbers(directory)[: -self._keep]:
                    sealed.remove(directory / str(step))
                segments.delete_unused(directory)
        _together("a checkpoint")
        self._placements = [*self._placements, placed][-self._chains :]
        self._reached = round


def changed_states(
    simulation: Simulation, state: SimulationState, base: segments.Placement
) -> tuple[Iterator[segments.Part], int]:
    """Returns the clients' states that a checkpoint on `base` writes, and their bytes.

    They are parts, one per segment, each of which is read when it is taken.
    """
    examples = _examples(simulation, state)
    row_bytes = {name: segments.bytes_of_row(example) for name, example in examples.items()}
    rows = segments.rows_to_write(base, state.changed, row_bytes)

    def parts() -> Iterator[segments.Part]:
        for piece in segments.pieces(rows, row_bytes, SEGMENT_BYTES):
            states = {}
            for name, x in piece.items():
                states[name] = simulation.read_clients(state, name, x)
            yield piece, states

    return parts(), sum(len(x) * row_bytes[name] for name, x in rows.items())


def _examples(simulation: Simulation, state: SimulationState) -> dict[str, PyTree]:
    """Bucket -> the state of its first row, for buckets whose clients keep a state."""
    first = np.zeros(1, np.int64)
    return {name: simulation.read_clients(state, name, first) for name in state.changed}


def _small(state: SimulationState, where: dict[str, np.ndarray]) -> PyTree:
    """The tree in a checkpoint's folder: a state without client states, and `Placement.where`.

    The latter has the structure of `changed`.
    """
    before = (state.server, state.last_round, state.changed)
    return (*before, where, state.waiting, state.reports)


def read(
    path: Path, simulation: Simulation
) -> tuple[SimulationState, segments.Placement, list[dict]]:
    """A checkpoint's state, placement and history.

    Raises:
      OtherGenerator: this process draws other random numbers than the run.
      Exception: of any other type, if a file is missing, damaged or of another simulation.
    """
    held = segments.held(path)
    sealed.check(path)
    check_generator(dict(sealed.read_json(path, RANDOM)), str(path))
    state = simulation.init()
    for segment, entry in held.items():
        sealed.check(segments.beside(path.parent) / str(segment), entry["seal"])
    small = segments.load_tree(path / SMALL, _small(state, state.changed))
    server, last_round, changed, where, waiting, reports = small
    examples = _examples(simulation, state)
    for segment, entry in held.items():
        folder = segments.beside(path.parent) / str(segment)
        for name, rows, states in segments.read(folder, entry["rows"], where, examples):
            state = simulation.write_clients(state, name, rows, states)
    state = state._replace(
        round=int(path.name),
        server=server,
        last_round=last_round,
        changed=changed,
        waiting=waiting,
        reports=reports,
    )
    rows = {segment: entry["rows"] for segment, entry in held.items()}
    history = sealed.read_json(path, "history.json")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ValueError(f"{path / 'history.json'} is not a list of rows")
    return state, segments.Placement(state.round, where, rows), history


def check_sums(path: Path, sums: Mapping[str, str]) -> None:
    """Raises OtherSimulation if a checkpoint's sums differ from `sums`.

    They cover data, split, models, method, training and options. Checkpoints of earlier versions
    have none.
    """
    if not (path / SUMS).exists():
        return
    noted = sealed.read_json(path, SUMS)
    # the same functions have other sums in another version
    parts = list(sums) if noted["versions"] == _versions() else ["data", "split"]
    differing = [name for name in parts if noted["sums"].get(name) != sums[name]]
    if "training" in differing and "method" in differing:
        differing.remove("method")  # it includes the training
    if differing:
        raise OtherSimulation(
            f"{path} was saved from a simulation that differs in {', '.join(differing)}; load it "
            "with the saved simulation, whose state another one can start from: "
            "fl.run(other, rounds, state=state)"
        )


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")}
    return versions | {"fedjax_ht": library_version(), "python": platform.python_version()}


def of_trial(directory: Path, trial: int) -> Path:
    """The folder with the checkpoints of one trial of an entry."""
    return directory.with_name(f"{directory.name}.{trial}") if trial else directory


def make_room(directory: Path, reached: int) -> None:
    """Prepares the folders for a run that resumes from round `reached`, -1 for none.

    Moves later checkpoints aside, with segments that no other one has, and deletes what a killed
    process left half-written.
    """
    for folder in (directory, segments.beside(directory)):
        folder.mkdir(parents=True, exist_ok=True)
        sealed.remove_half_written(folder)
    steps = sealed.numbers(directory)
    later = [directory / str(step) for step in steps if step > reached]
    if later:
        unused = segments.unused(directory, [step for step in steps if step <= reached])
        # The segments first: if this is interrupted, the checkpoints that need them still count as
        # later, and the next call moves the rest.
        sealed.set_aside([*unused, *later], directory.parent)


def _together(point: str) -> None:
    """Waits until every process of the run has reached this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(point)


CHECKPOINTS = "checkpoints"  # as in the folder of an entry


def save(
    folder: Path | str, simulation: Simulation, state: SimulationState, history: Sequence[Row]
) -> None:
    """Writes a checkpoint of a simulation, atomically, and its rows.

    The folder has the files of an entry of a run: checkpoints/, metrics.jsonl, metrics.csv,
    clients.csv and classes.csv. The two newest checkpoints are kept. Checkpoints of this round or
    a later one, and those whose rows are not the first of `history`, are moved into set_aside_1
    beside them.

        >>> state, history = fl.run(simulation, rounds=10)  # doctest: +SKIP
        >>> fl.save("runs/mine", simulation, state, history)  # doctest: +SKIP
        >>> state, history = fl.load("runs/mine", simulation)  # doctest: +SKIP
        >>> fl.run(simulation, 20, state=state, history=history)  # doctest: +SKIP

    Args:
      folder: the folder to write to.
      simulation: the simulation of the state.
      state: the state, which stays valid.
      history: all rows up to that state, as `fl.run` returns them.

    Raises:
      ValueError: `folder` is a file, the last row is not of the state's round, or a row has a value
        that JSON does not have. One line.
      OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder is {str(folder)!r}, a file; give a folder, which may be new")
    rows = list(history)
    try:
        json.dumps(rows)
    except TypeError as error:
        raise ValueError(f"history: {error}; give numbers of Python") from None
    if rows:
        check_start(state, rows)
    checkpointer = Checkpointer(folder / CHECKPOINTS, simulation, sums=simulation.program.sums())
    checkpointer.follow(rows, int(state.round))
    # All clients: the state may be of another simulation, with other first states.
    changed = {name: np.maximum(rounds, 1) for name, rounds in state.changed.items()}
    checkpointer.save(state._replace(changed=changed), rows)
    write_runs([rows], folder)


def load(folder: Path | str, simulation: Simulation) -> tuple[SimulationState, list[Row]]:
    """Reads the newest readable state of a folder that `save` wrote, and its rows.

    A run resumed from them equals an uninterrupted run, bit for bit. Make the simulation in the
    same way as the saved one: checksums of data, split, models, method, training and options are
    compared. The execution of clients (lanes, devices, store) may differ.

    Args:
      folder: the folder.
      simulation: a simulation of the same method, federation, data and options.

    Raises:
      ValueError: no readable checkpoint fits the simulation, or it is of another simulation. One
        line.
    """
    sums = simulation.program.sums()
    restored = Checkpointer(Path(folder) / CHECKPOINTS, simulation, sums=sums).restore()
    if restored is None:
        raise ValueError(
            f"{folder} has no readable checkpoint of this simulation; fl.save(folder, "
            "simulation, state, history) writes one"
        )
    return restored
