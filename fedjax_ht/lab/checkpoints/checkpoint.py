"""Saves and restores runs, bit for bit, by checkpoints that write changed states only.

The newest few stay.

A run's first client states are a pure function of its config and seed, so a client that never
changed is not stored. A checkpoint writes the states that changed since the one that it builds on
as a segment, a folder (`segments`), and beside it what is small: server, history, and for every
client which segment holds its newest state. Restoring is `simulation.init()` and the states of the
segments written over it.

Where two or more checkpoints stay, each builds on the one before the last, or on none where its
process has neither written nor read that: two in a row share no file, so that no single damage
takes both. Where few clients change between checkpoints that is up to twice the bytes written, and
up to four times the states that have ever changed kept; where all do, it is not one byte more.

Every folder carries the checksums of its files, and a checkpoint those of its segments (`sealed`):
they are looked at before anything is read. What cannot be read is passed over, and moved aside when
the run goes on; it is never deleted."""

import contextlib
import importlib.metadata
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.core.keys import OtherGenerator, check_generator, random_generator
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.checkpoints import sealed, segments
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import PASSING, is_caused_by
from fedjax_ht.lab.version import library_version
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState

_LOGGER = logging.getLogger(__name__)

CHAINS = 2  # checkpoints in a row that share no segment
COPIED_BYTES = 4 << 30  # for more the run waits, until all is written
# more is cut into several segments, so that host memory needs no second copy of all states
SEGMENT_BYTES = 64 << 20

RANDOM = "random.json"
"""File of a checkpoint with the random generator of its run."""
SUMS = "simulation.json"
"""File of a checkpoint that `save` wrote, with the checksums of its simulation."""
SMALL = "small"
"""Folder of a checkpoint with its `_small`."""


class OtherSimulation(ValueError):
    """A checkpoint is of another course than the simulation that it is read for. One line."""


class Copied(NamedTuple):
    """A state in host memory, from which a checkpoint is written.

    Attributes:
      state: the state without the clients' states.
      history: rows of the run's history.
      parts: rows and their states, one part a segment; a generator reads each when it is written.
      size: bytes of the clients' states in `parts`.
    """

    state: SimulationState
    history: Sequence[Row]
    parts: Iterable[segments.Part]
    size: int


class Checkpointer:
    """Saves and restores a run: checkpoints in `directory` and "`directory`.segments".

    Args:
      directory: folder of the checkpoints, one folder each, named by its round.
      simulation: the simulation of the run.
      keep: number of checkpoints that stay, the newest; at least 1.
      background: True writes in a thread while the run goes on. With several processes, or more
        than `COPIED_BYTES` to write, the run waits all the same.
      trial: number of the run among those of its entry; of another than the first the name of the
        folder ends in it.
      sums: checksums of the simulation, see `program.simulation_sums`, which a checkpoint carries
        and must have; None for a run whose folder has an identity.
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
        # of the newest that this object saved or read
        self._placements: list[segments.Placement] = []
        self._reached = -1  # round of the last of them
        threaded = background and jax.process_count() == 1
        self._pool = ThreadPoolExecutor(1, "checkpoint") if threaded else None
        self._writing: Future | None = None

    def save(self, state: SimulationState, history: Sequence[Row]) -> None:
        """Writes a checkpoint, whole or not at all, named by the state's round.

        Returns when all is on disk; in the background, when what changed is copied, and what then
        goes wrong is raised by the next `save`, `check` or `wait`. The round that was saved or
        restored last is left as it is. Checkpoints of later rounds than that one are of another
        course of the run, such as broken ones that were passed over; they are moved aside.
        """
        self.wait()
        if self._reached > state.round:
            self._placements, self._reached = [], -1
        base = self._base(state)
        copied = copied_state(self._simulation, state, history, base)
        if self._pool is None or copied.size > COPIED_BYTES:
            self._write(copied, base)
        else:
            # the list reads all states now, before the run changes them
            copied = copied._replace(parts=list(copied.parts))
            self._writing = self._pool.submit(self._write, copied, base)

    def wait(self) -> None:
        """Returns when all that was saved is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raises the error of a write in the background since the last call; it waits for
        nothing."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def restore(
        self, warn: Callable[[str], None] = _LOGGER.warning
    ) -> tuple[SimulationState, list[dict]] | None:
        """The newest state and history that can be read; None if there is none.

        A checkpoint that cannot be read is passed over with one line to `warn`, for the one before
        it. On another kind of device than it was saved on, initial states may differ in their last
        bit.

        Raises:
          OtherGenerator: this process draws other random numbers than the run: states of clients
            that never took part, which no checkpoint holds, would be others.
          OtherSimulation: the checkpoint is of a simulation with other sums.
          OSError: too much is open to read it, or the like; see `PASSING`.
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
            # whatever is wrong with one file, an older checkpoint may be whole
            except Exception as error:
                if is_caused_by(error, PASSING):
                    raise  # the checkpoint may be whole: nothing is to be trained twice for it
                lines = str(error).splitlines()
                reason = lines[0][:300] if lines else type(error).__name__
                warn(f"checkpoint {path} cannot be read ({reason}); trying the one before it")
                continue
            self._placements, self._reached = [placed], step
            return state, history
        return None

    def follow(self, history: Sequence[dict]) -> None:
        """Takes the newest checkpoint whose rows `history` begins with for the one that the run
        goes on from, without reading its states: later ones are of another course."""
        self.wait()
        for step in reversed(sealed.numbers(self._directory)):
            with contextlib.suppress(OSError, ValueError):  # damaged: it is of no known course
                past = sealed.read_json(self._directory / str(step), "history.json")
                if past == list(history[: len(past)]):
                    self._placements, self._reached = [], step
                    return

    def _base(self, state: SimulationState) -> segments.Placement:
        """The placement that the next checkpoint builds on, or that of no checkpoint."""
        if len(self._placements) == self._chains:
            base = self._placements[0]
            # segments may have been deleted under the run
            if all((self._segments / str(segment)).exists() for segment in base.held):
                return base
        where = {name: np.zeros(len(x), np.int32) for name, x in state.changed.items()}
        return segments.Placement(-1, where, {})

    def _write(self, copied: Copied, base: segments.Placement) -> None:
        directory, is_first = self._directory, jax.process_index() == 0
        round = copied.state.round
        if round == self._reached and round in sealed.numbers(directory):
            return
        if is_first:
            make_room(directory, self._reached)
        _together("room for a checkpoint")
        placed = segments.write(self._segments, copied.parts, round, base)
        path = directory / str(round)
        half = sealed.temporary(path)
        segments.save_tree(half / SMALL, _small(copied.state, placed.where))
        if is_first:
            held = segments.with_seals(self._segments, placed.held)
            sealed.write_json(half / "segments.json", held)
            sealed.write_json(half / "history.json", copied.history)
            sealed.write_json(half / RANDOM, random_generator())
            if self._sums is not None:
                sealed.write_json(half / SUMS, {"sums": self._sums, "versions": _versions()})
            sealed.place(path)
            # the checkpoint is in place; what cannot be deleted goes before the next one, which
            # names it if it cannot be deleted then either
            with contextlib.suppress(OSError):
                for step in sealed.numbers(directory)[: -self._keep]:
                    sealed.remove(directory / str(step))
                segments.delete_unused(directory)
        _together("a checkpoint")
        self._placements = [*self._placements, placed][-self._chains :]
        self._reached = round


def copied_state(
    simulation: Simulation, state: SimulationState, history: Sequence[Row], base: segments.Placement
) -> Copied:
    """Copies to host memory the state that a checkpoint after `base` is written from."""
    examples = _examples(simulation, state)
    row_bytes = {name: segments.bytes_of_row(example) for name, example in examples.items()}
    rows = segments.rows_to_write(base, state.changed, row_bytes)

    def parts() -> Iterator[segments.Part]:
        for piece in segments.pieces(rows, row_bytes, SEGMENT_BYTES):
            states = {}
            for name, x in piece.items():
                states[name] = simulation.read_clients(state, name, x)
            yield piece, states

    small = jax.tree.map(segments.plain, state._replace(clients={}))
    size = sum(len(x) * row_bytes[name] for name, x in rows.items())
    return Copied(small._replace(round=state.round), list(history), parts(), size)


def _examples(simulation: Simulation, state: SimulationState) -> dict[str, PyTree]:
    """Bucket -> the state of its first row, of buckets whose clients keep one between rounds."""
    first = np.zeros(1, np.int64)
    return {name: simulation.read_clients(state, name, first) for name in state.changed}


def _small(state: SimulationState, where: dict[str, np.ndarray]) -> PyTree:
    """The tree of a checkpoint's folder: a state without those of clients, and `Placement.where`,
    which has the form of `changed`."""
    before = (state.server, state.last_round, state.changed)
    return (*before, where, state.waiting, state.reports)


def read(
    path: Path, simulation: Simulation
) -> tuple[SimulationState, segments.Placement, list[dict]]:
    """A checkpoint's state, placement and history.

    Raises:
      OtherGenerator: this process draws other random numbers than the run.
      Exception: of any other kind, if a file is missing, damaged or of another simulation.
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
        raise ValueError(f"{path / 'history.json'} is no list of rows")
    return state, segments.Placement(state.round, where, rows), history


def check_sums(path: Path, sums: Mapping[str, str]) -> None:
    """Raises an OtherSimulation where a checkpoint was saved from a simulation of other data,
    another split, models, method, training or options; earlier versions noted none."""
    if not (path / SUMS).exists():
        return
    noted = sealed.read_json(path, SUMS)
    # functions of another version have other sums
    parts = list(sums) if noted["versions"] == _versions() else ["data", "split"]
    differing = [name for name in parts if noted["sums"].get(name) != sums[name]]
    if "training" in differing and "method" in differing:
        differing.remove("method")  # which has the training in it
    if differing:
        raise OtherSimulation(
            f"{path} was saved from a simulation of another {', '.join(differing)}; load it "
            "with the simulation that was saved, whose state another may start from: "
            "fl.run(other, rounds, state=state)"
        )


def _versions() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax")}
    return versions | {"fedjax_ht": library_version(), "python": platform.python_version()}


def of_trial(directory: Path, trial: int) -> Path:
    """The folder with the checkpoints of one of an entry's trials."""
    return directory.with_name(f"{directory.name}.{trial}") if trial else directory


def make_room(directory: Path, reached: int) -> None:
    """Clears the folders before a run goes on from round `reached`, -1 for none.

    Later checkpoints, and segments that no other has, are moved aside; what a killed process left
    half written goes.
    """
    for folder in (directory, segments.beside(directory)):
        folder.mkdir(parents=True, exist_ok=True)
        sealed.remove_half_written(folder)
    steps = sealed.numbers(directory)
    later = [directory / str(step) for step in steps if step > reached]
    if later:
        unused = segments.unused(directory, [step for step in steps if step <= reached])
        # the segments first: were this to end halfway, the checkpoints that need them are still
        # later ones, and the next call moves the rest
        sealed.set_aside([*unused, *later], directory.parent)


def _together(point: str) -> None:
    """Waits until every process of the run has come to this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(point)


CHECKPOINTS = "checkpoints"  # as in the folder of an entry


def save(
    folder: Path | str, simulation: Simulation, state: SimulationState, history: Sequence[Row]
) -> None:
    """Writes a checkpoint of a simulation, atomically, and its rows.

    The folder has the files of an entry of a run: checkpoints/, metrics.jsonl, metrics.csv and
    clients.csv. The two newest checkpoints stay. Checkpoints whose rows are not the first of
    `history` belong to another run, and are moved into set_aside_1 beside them.

        >>> state, history = fl.run(simulation, rounds=10)  # doctest: +SKIP
        >>> fl.save("runs/mine", simulation, state, history)  # doctest: +SKIP
        >>> state, history = fl.load("runs/mine", simulation)  # doctest: +SKIP
        >>> fl.run(simulation, 20, state=state, history=history)  # doctest: +SKIP

    Args:
      folder: the folder to write to.
      simulation: the simulation of the state.
      state: the state, which stays valid.
      history: all rows until that state, as `fl.run` returns them.

    Raises:
      ValueError: there is a file in the folder's place. One line.
      OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder is {str(folder)!r}, a file; give a folder, which may be new")
    rows = list(history)
    checkpointer = Checkpointer(folder / CHECKPOINTS, simulation, sums=simulation.program.sums())
    checkpointer.follow(rows)
    checkpointer.save(state, rows)
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
      ValueError: the folder has no readable checkpoint that fits the simulation, or one of another
        simulation. One line.
    """
    sums = simulation.program.sums()
    restored = Checkpointer(Path(folder) / CHECKPOINTS, simulation, sums=sums).restore()
    if restored is None:
        raise ValueError(
            f"{folder} has no checkpoint of this simulation that can be read; fl.save(folder, "
            "simulation, state, history) writes one"
        )
    return restored
