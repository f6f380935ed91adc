"""Saves and restores runs, bit for bit, by checkpoints that write changed states only.

The newest few stay.

A run's first client states are a pure function of its config and seed, so a client that never
changed is not stored. A checkpoint writes the states that changed since the one that it builds on
as a segment, a folder, and beside it what is small: server, history, and for every client which
segment holds its newest state. Restoring is `simulation.init()` and the states of the segments
written over it. As in a log-structured file system (Rosenblum and Ousterhout, ACM TOCS 1992) the
emptiest segments' states move along into the next one, so that the segments of one checkpoint hold
at most twice the states that have ever changed. Segments that no checkpoint refers to are deleted.

Where two or more checkpoints stay, each builds on the one before the last, or on none where its
process has neither written nor read that: two in a row share no file, so that no single damage
takes both. Where few clients change between checkpoints that is up to twice the bytes written, and
up to four times the states that have ever changed kept; where all do, it is not one byte more.

Every folder carries the checksums of its files, and a checkpoint those of its segments (`sealed`):
they are looked at before anything is read. What cannot be read is passed over, and moved aside when
the run goes on; it is never deleted."""

import contextlib
import copy
import importlib.metadata
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.core.keys import OtherGenerator, check_generator, random_generator
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import PASSING, is_caused_by, plain_open
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.version import library_version
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState

ARRAYS = "arrays.npz"


def save_tree(path: Path, tree: PyTree) -> None:
    """Writes a pytree of arrays and typed keys into a new folder, as one .npz file.

    Arrays are named by the position of the leaf instead of its path, so that a file need not know a
    method's types.

    Every process of a run makes the same call, since fetching an array that lies on several
    processes takes all of them; the first one writes.

    Raises:
      OSError: it cannot be written. One line.
    """
    arrays = {}
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        arrays[_name(i)] = _storable(plain(leaf))
    if jax.process_index() > 0:
        return
    try:
        path.mkdir(parents=True)
        with plain_open(path / ARRAYS, "xb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def load_tree(path: Path, template: PyTree) -> PyTree:
    """The tree that `save_tree` wrote, of the template's structure, shapes, dtypes and placement.

    Raises:
      Exception: of any kind, if a file is missing, damaged or of another tree.
    """
    leaves, structure = jax.tree.flatten(template)
    with opened_npz(path / ARRAYS) as stored:
        restored = [_restored(stored.get(_name(i)), leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, restored)


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is an array of typed keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    """An array, or the numbers of an array of typed keys, in host memory."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _name(position: int) -> str:
    return f"{position:05d}"


def _storable(array: np.ndarray) -> np.ndarray:
    """The array as a dtype that .npy files know: the bits of bfloat16 and the like as integers."""
    if array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _restored(stored: np.ndarray | None, leaf: Any) -> Any:
    """A stored array in the form of a template's leaf."""
    like = plain(leaf)
    expected = _storable(like)
    if stored is None or stored.shape != expected.shape or stored.dtype != expected.dtype:
        form = "nothing" if stored is None else f"{stored.dtype}{list(stored.shape)}"
        raise ValueError(f"it holds {form}, expected {like.dtype}{list(like.shape)}")
    # host arrays of a state are written to
    value = np.require(stored.view(like.dtype), requirements="W")
    if is_key(leaf):
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    return jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else value


Rows = dict[str, np.ndarray]  # bucket -> int64 [m], ascending rows of its stacked states
Part = tuple[Rows, dict[str, PyTree]]  # rows, and bucket -> their states

# a file that is missing, or that is a folder; other errors may pass
_DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Placement(NamedTuple):
    """The segments in which a checkpoint's client states are.

    Attributes:
      round: the number of the checkpoint's round; -1 for no checkpoint.
      where: bucket -> int32 [rows], the segment with each row's newest state, 0 where that is still
        the initial one.
      held: segment -> bucket -> number of rows in it, whether still the newest or not.
    """

    round: int
    where: dict[str, np.ndarray]
    held: dict[int, dict[str, int]]


def segments_of(directory: Path) -> Path:
    """The folder with the segments of a folder of checkpoints."""
    return directory.with_name(f"{directory.name}.segments")


def rows_to_write(
    base: Placement, changed: dict[str, np.ndarray], row_bytes: dict[str, int]
) -> Rows:
    """Rows for the next segments: those changed since `base`, and those of its emptiest segments.

    So many of the latter that the segments in use then hold at most twice the bytes of the rows
    ever changed.

    Args:
      base: the placement of the checkpoint that the next one builds on.
      changed: bucket -> int32 [rows], the round in which each row changed last; 0 for never.
      row_bytes: bucket -> bytes of one row.
    """
    taken, bound = {}, 0
    for name, rounds in changed.items():
        taken[name] = rounds > max(base.round, 0)
        bound += 2 * int((rounds > 0).sum()) * row_bytes[name]
    total = sum(int(mask.sum()) * row_bytes[name] for name, mask in taken.items())
    live = _live_bytes(base, taken, row_bytes)
    sizes = _held_bytes(base, row_bytes)
    total += sum(sizes[segment] for segment in live)
    for segment in sorted(live, key=lambda s: live[s] / sizes[s]):
        if total <= bound:
            break
        total -= sizes[segment] - live[segment]
        for name in taken:
            taken[name] = taken[name] | (base.where[name] == segment)
    return dict(zip(taken, map(np.flatnonzero, taken.values())))


def _live_bytes(
    base: Placement, taken: dict[str, np.ndarray], row_bytes: dict[str, int]
) -> dict[int, int]:
    """Segment -> bytes of the rows whose newest state it holds, rows in `taken` left out.

    Segments without any such row are left out, too.
    """
    live = dict.fromkeys(base.held, 0)
    for name, where in base.where.items():
        numbers, counts = np.unique(where[~taken[name]], return_counts=True)
        for segment, count in zip(numbers.tolist(), counts.tolist()):
            if segment:  # 0 stands for the initial state, which no segment holds
                live[segment] += count * row_bytes[name]
    return {segment: size for segment, size in live.items() if size}


def _held_bytes(base: Placement, row_bytes: dict[str, int]) -> dict[int, int]:
    """Segment -> bytes of all its rows."""
    sizes = dict.fromkeys(base.held, 0)
    for segment, rows in base.held.items():
        for name, count in rows.items():
            sizes[segment] += count * row_bytes[name]
    return sizes


def pieces(rows: Rows, row_bytes: dict[str, int], limit: int) -> Iterator[Rows]:
    """Cuts rows into parts of about `limit` bytes."""
    lengths = [len(x) for x in rows.values()]
    cost = np.repeat([row_bytes[name] for name in rows], lengths)
    start = np.cumsum(cost) - cost  # bytes before each row
    numbers = np.split(start // limit, np.cumsum(lengths)[:-1])  # a bucket's rows -> their parts
    for number in np.unique(np.concatenate(numbers)):
        piece = {}
        for (name, x), parts in zip(rows.items(), numbers):
            if (parts == number).any():
                piece[name] = x[parts == number]
        yield piece


def write_segments(segments: Path, parts: Iterable[Part], round: int, base: Placement) -> Placement:
    """Writes the states that changed since `base`; each segment is there as a whole or not at all.

    Args:
      segments: folder of the segments.
      parts: rows and their states, one part a segment.
      round: the number of the round of the checkpoint that the segments belong to.
      base: the placement of the checkpoint that it builds on.
    """
    where, held = copy.deepcopy(base.where), dict(base.held)
    last = max(sealed.numbers(segments), default=0)
    if jax.process_count() > 1:
        # the first process's count: another may look before a folder shows on its file system
        last = int(multihost_utils.broadcast_one_to_all(np.int32(last)))
    # a number is never used twice
    for number, (piece, states) in enumerate(parts, last + 1):
        tree, held[number] = {}, {}
        for name, x in piece.items():
            tree[name] = (x.astype(np.int32), states[name])
            where[name][x] = number
            held[number][name] = len(x)
        path = segments / str(number)
        save_tree(sealed.temporary(path), tree)
        if jax.process_index() == 0:
            sealed.place(path)
    used = set()
    for x in where.values():
        used |= set(np.unique(x).tolist())
    for segment in held.keys() - used:
        del held[segment]
    return Placement(round, where, held)


def held_segments(path: Path) -> dict[int, dict]:
    """Segment -> its "rows", see `Placement.held`, and its "seal", of a checkpoint.

    Raises:
      ValueError, OSError: it is damaged.
    """
    return {int(s): entry for s, entry in sealed.read_json(path, "segments.json").items()}


def sealed_segments(segments: Path, held: Mapping[int, dict[str, int]]) -> dict[str, dict]:
    """The content of segments.json: segment -> its "rows" and its "seal"; see `held_segments`."""
    entries = {}
    for segment, rows in held.items():
        seal = sealed.seal_of(segments / str(segment))
        entries[str(segment)] = {"rows": rows, "seal": seal}
    return entries


def unused_segments(directory: Path, steps: Iterable[int]) -> list[Path]:
    """The segments that none of these checkpoints refers to, ascending; none where a checkpoint is
    damaged, since it may need any of them.

    Raises:
      OSError: a checkpoint cannot be read now, which says nothing about what it needs.
    """
    segments, used = segments_of(directory), set()
    try:
        for step in steps:
            used |= held_segments(directory / str(step)).keys()
    except (ValueError, AttributeError, *_DAMAGE):
        return []
    return [segments / str(n) for n in sealed.numbers(segments) if n not in used]


def delete_unused(directory: Path) -> None:
    """Deletes the segments that no checkpoint refers to."""
    for path in unused_segments(directory, sealed.numbers(directory)):
        sealed.remove(path)


_LOGGER = logging.getLogger(__name__)

CHAINS = 2  # checkpoints in a row that share no segment
COPIED_BYTES = 4 << 30  # for more the run waits, until all is written
# more is cut into several segments, so that host memory needs no second copy of all states
SEGMENT_BYTES = 64 << 20


RANDOM = "random.json"
"""File of a checkpoint with the random generator of its run."""


SUMS = "simulation.json"
"""File of a checkpoint that `save` wrote, with the checksums of its simulation."""


class OtherSimulation(ValueError):
    """A checkpoint is of another course than the simulation that it is read for. One line."""


class Copied(NamedTuple):
    """A state in host memory, from which a checkpoint is written.

    Attributes:
      round: the number of the state's round.
      small: (server, last_round, changed).
      optional: (waiting, reports) of the state.
      history: rows of the run's history.
      parts: rows and their states, one part a segment; a generator reads each when it is written.
      size: bytes of the clients' states in `parts`.
    """

    round: int
    small: PyTree
    optional: tuple[PyTree, PyTree]
    history: Sequence[Row]
    parts: Iterable[Part]
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
        self._segments = segments_of(self._directory)
        self._simulation, self._keep = simulation, keep
        self._chains = min(keep, CHAINS)
        # of the newest that this object saved or read
        self._placements: list[Placement] = []
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

    def _base(self, state: SimulationState) -> Placement:
        """The placement that the next checkpoint builds on, or that of no checkpoint."""
        if len(self._placements) == self._chains:
            base = self._placements[0]
            # segments may have been deleted under the run
            if all((self._segments / str(segment)).exists() for segment in base.held):
                return base
        where = {name: np.zeros(len(x), np.int32) for name, x in state.changed.items()}
        return Placement(-1, where, {})

    def _write(self, copied: Copied, base: Placement) -> None:
        directory, is_first = self._directory, jax.process_index() == 0
        if copied.round == self._reached and copied.round in sealed.numbers(directory):
            return
        if is_first:
            make_room(directory, self._reached)
        _together("room for a checkpoint")
        placed = write_segments(self._segments, copied.parts, copied.round, base)
        path = directory / str(copied.round)
        half = sealed.temporary(path)
        save_tree(half / "small", (*copied.small, placed.where, *copied.optional))
        if is_first:
            held = sealed_segments(self._segments, placed.held)
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
                delete_unused(directory)
        _together("a checkpoint")
        self._placements = [*self._placements, placed][-self._chains :]
        self._reached = copied.round


def copied_state(
    simulation: Simulation, state: SimulationState, history: Sequence[Row], base: Placement
) -> Copied:
    """Copies to host memory the state that a checkpoint after `base` is written from."""
    row_bytes = {}
    for name in state.changed:
        row_bytes[name] = _bytes(simulation.read_clients(state, name, np.zeros(1, np.int64)))
    rows = rows_to_write(base, state.changed, row_bytes)

    def parts() -> Iterator[Part]:
        for piece in pieces(rows, row_bytes, SEGMENT_BYTES):
            states = {}
            for name, x in piece.items():
                states[name] = simulation.read_clients(state, name, x)
            yield piece, states

    return Copied(
        round=state.round,
        small=jax.tree.map(plain, (state.server, state.last_round, state.changed)),
        optional=jax.tree.map(plain, (state.waiting, state.reports)),
        history=list(history),
        parts=parts(),
        size=sum(len(x) * row_bytes[name] for name, x in rows.items()),
    )


def read(path: Path, simulation: Simulation) -> tuple[SimulationState, Placement, list[dict]]:
    """A checkpoint's state, placement and history.

    Raises:
      OtherGenerator: this process draws other random numbers than the run.
      Exception: of any other kind, if a file is missing, damaged or of another simulation.
    """
    held = held_segments(path)
    sealed.check(path)
    check_generator(dict(sealed.read_json(path, RANDOM)), str(path))
    state = simulation.init()
    for segment, entry in held.items():
        sealed.check(segments_of(path.parent) / str(segment), entry["seal"])
    # `where` has the form of `changed`: bucket -> int32 [rows]
    small, optional = (state.server, state.last_round), (state.waiting, state.reports)
    template = (*small, state.changed, state.changed, *optional)
    read = load_tree(path / "small", template)
    server, last_round, changed, where, waiting, reports = read
    for segment, entry in held.items():
        folder = segments_of(path.parent) / str(segment)
        state = _read_segment(folder, entry["rows"], where, simulation=simulation, state=state)
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
    return state, Placement(state.round, where, rows), history


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


def _read_segment(
    folder: Path,
    counts: dict[str, int],
    where: dict[str, np.ndarray],
    *,
    simulation: Simulation,
    state: SimulationState,
) -> SimulationState:
    """Writes the newest client states of a segment over those of `state`.

    Args:
      folder: the folder of the segment.
      counts: bucket -> rows that the segment has.
      where: the rows' segments, as `Placement.where` of the checkpoint.
      simulation: the simulation of the run.
      state: the state to write over.
    """
    template = {}
    for name, count in counts.items():
        example = simulation.read_clients(state, name, np.zeros(1, np.int64))
        if not 0 <= count <= len(where[name]):
            raise ValueError(f"{folder} has {count} rows of {name}")
        template[name] = (np.zeros(count, np.int32), _repeated(example, count))
    for name, (rows, states) in load_tree(folder, template).items():
        rows = rows.astype(np.int64)
        # a row whose newest state is in a later segment is left out
        newest = where[name][rows] == int(folder.name)
        if newest.any():
            states = jax.tree.map(lambda x, keep=newest: x[keep], states)
            state = simulation.write_clients(state, name, rows[newest], states)
    return state


def _repeated(example: PyTree, count: int) -> PyTree:
    """A view of `count` rows like the example's only one."""

    def repeat(x):
        broadcast_to = jnp.broadcast_to if is_key(x) else np.broadcast_to
        return broadcast_to(x, (count, *x.shape[1:]))

    return jax.tree.map(repeat, example)


def _bytes(row: PyTree) -> int:
    """Bytes of a row in a segment: its number, int32, and its states."""
    return 4 + sum(plain(leaf).nbytes for leaf in jax.tree.leaves(row))


def of_trial(directory: Path, trial: int) -> Path:
    """The folder with the checkpoints of one of an entry's trials."""
    return directory.with_name(f"{directory.name}.{trial}") if trial else directory


def make_room(directory: Path, reached: int) -> None:
    """Clears the folders before a run goes on from round `reached`, -1 for none.

    Later checkpoints, and segments that no other has, are moved aside; what a killed process left
    half written goes.
    """
    for folder in (directory, segments_of(directory)):
        folder.mkdir(parents=True, exist_ok=True)
        sealed.remove_half_written(folder)
    steps = sealed.numbers(directory)
    later = [directory / str(step) for step in steps if step > reached]
    if later:
        unused = unused_segments(directory, [step for step in steps if step <= reached])
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
