"""Checkpoints that write only what changed: the newest few stay, and a run goes on from them bit
for bit.

A run's first client states are a pure function of its config and seed, so a client that never
changed is not stored. A checkpoint writes the states that changed since the one that it builds on
as a segment, and beside it what is small: server, history, and for every client which segment holds
its newest state. Restoring is `simulation.init()` and the states of the segments written over it.
Segments that no checkpoint refers to any more are deleted. As in a log-structured file system
(Rosenblum and Ousterhout, ACM TOCS 1992) the emptiest segments' states move along into the next
one, so that the segments of one checkpoint hold at most twice the states that have ever changed.

Where two or more checkpoints stay, each builds on the one before the last, or on none where its
process has neither written nor read that: two in a row share no file, so that no single damage
takes both. Where few clients change between checkpoints that is up to twice the bytes written, and
up to four times the states that have ever changed kept; where all do, it is not one byte more.

Every folder carries the checksums of its files, and a checkpoint those of its segments (`sealed`):
they are looked at before anything is read. What cannot be read is passed over, and moved aside when
the run goes on; it is never deleted.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.checkpoints import sealed
from fedjax_ht.checkpoints.trees import is_key, load_tree, plain, save_tree
from fedjax_ht.core.method import PyTree
from fedjax_ht.simulation.simulation import Simulation, SimulationState

# more is cut into several segments, so that host memory needs no second copy of all states
SEGMENT_BYTES = 64 << 20
CHAINS = 2  # checkpoints in a row that share no segment
COPIED_BYTES = 4 << 30  # for more the run waits, until all is written

Rows = dict[str, np.ndarray]  # bucket -> int64 [m], ascending rows of its stacked states


class Checkpointer(NamedTuple):
    """Saves and restores a run.

    Attributes:
      save: (state, history) -> None; atomic, named by the state's round. It returns when all is on
        disk; in the background, when what changed is copied, and what then goes wrong is raised by
        the next `save` or `wait`. The round that was saved or restored last is left as it is.
        Checkpoints of later rounds than that one are of another course of the run, such as broken
        ones that were passed over; they go.
      wait: () -> None; returns when all that was saved is on disk.
      restore: (warn) -> (state, history), or None if there is none. A checkpoint that cannot be
        read is passed over with one line to `warn`, for the one before it. On another kind of
        device than it was saved on, initial states may differ in their last bit.
    """

    save: Callable[[SimulationState, list[dict]], None]
    wait: Callable[[], None]
    restore: Callable[..., tuple[SimulationState, list[dict]] | None]


class Placement(NamedTuple):
    """Where a checkpoint's client states are.

    Attributes:
      round: the checkpoint's; -1 for no checkpoint.
      where: bucket -> int32 [rows], the segment with each row's newest state, 0 where that is still
        the initial one.
      held: segment -> bucket -> how many rows it has, whether still the newest or not.
    """

    round: int
    where: dict[str, np.ndarray]
    held: dict[int, dict[str, int]]


class Copied(NamedTuple):
    """What a checkpoint is written from, in host memory.

    Attributes:
      round: the state's.
      small: (servers, last_round, changed).
      waiting: as of the state.
      history: of the run.
      parts: rows and their states, one part a segment; a generator reads each when it is written.
    """

    round: int
    small: PyTree
    waiting: PyTree
    history: list[dict]
    parts: Iterable[tuple[Rows, dict[str, PyTree]]]


def make_checkpointer(
    directory: Path | str, simulation: Simulation, keep: int = 2, background: bool = False
) -> Checkpointer:
    """Checkpoints of a simulation in `directory` and "`directory`.segments", of which the newest
    `keep` stay.

    Args:
      background: write in a thread while the run goes on. With several processes, or more than
        `COPIED_BYTES` to write, the run waits all the same.

    Raises:
      ValueError: `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; it must be at least 1")
    directory = Path(directory).absolute()
    segments, chains = segments_of(directory), min(keep, CHAINS)
    placements: list[Placement] = []  # of the newest checkpoints that the run has saved or read
    reached = -1  # the round of the last
    pool = ThreadPoolExecutor(1, "checkpoint") if background and jax.process_count() == 1 else None
    writing: Future | None = None

    def save(state: SimulationState, history: list[dict]) -> None:
        nonlocal placements, reached, writing
        wait()
        if reached > state.round:
            placements, reached = [], -1
        base = placements[0] if len(placements) == chains else None
        if base is None or not all((segments / str(s)).exists() for s in base.held):
            where = {name: np.zeros(len(x), np.int32) for name, x in state.changed.items()}
            base = Placement(-1, where, {})
        copied, size = copy(simulation, state, history, base)
        if pool is None or size > COPIED_BYTES:
            write(copied, base)
        else:
            writing = pool.submit(write, copied._replace(parts=list(copied.parts)), base)

    def wait() -> None:
        nonlocal writing
        done, writing = writing, None
        if done is not None:
            done.result()

    def write(copied: Copied, base: Placement) -> None:
        nonlocal placements, reached
        if copied.round == reached and copied.round in sealed.numbers(directory):
            return
        if jax.process_index() == 0:
            make_room(directory, reached)
        _together("room for a checkpoint")
        placed = write_segments(segments, copied, base)
        path = directory / str(copied.round)
        save_tree(sealed.temporary(path) / "small", (*copied.small, placed.where, copied.waiting))
        if jax.process_index() == 0:
            held = {
                str(s): {"rows": rows, "seal": sealed.seal_of(segments / str(s))}
                for s, rows in placed.held.items()
            }
            for name, content in (("segments.json", held), ("history.json", copied.history)):
                (sealed.temporary(path) / name).write_text(json.dumps(content))
            sealed.place(path)
            for step in sealed.numbers(directory)[:-keep]:
                sealed.remove(directory / str(step))
            delete_unused(directory)
        _together("a checkpoint")
        placements, reached = [*placements, placed][-chains:], copied.round

    def restore(warn: Callable[[str], None] = logging.warning):
        nonlocal placements, reached
        wait()
        for step in reversed(sealed.numbers(directory)):
            try:
                state, placed, history = read(directory / str(step), simulation)
                placements, reached = [] if placed is None else [placed], step
                return state, history
            # whatever is wrong with one file, an older checkpoint may be whole
            except Exception as error:
                reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
                warn(
                    f"checkpoint {directory / str(step)} cannot be read ({reason}); trying the "
                    "one before it"
                )
        return None

    return Checkpointer(save, wait, restore)


def segments_of(directory: Path) -> Path:
    """Where the segments of a folder of checkpoints are."""
    return directory.with_name(f"{directory.name}.segments")


def make_room(directory: Path, reached: int) -> None:
    """Before a run goes on from round `reached`, -1 for none: later checkpoints, and segments that
    no other has, are moved aside; what a killed process left half written goes."""
    segments = segments_of(directory)
    for folder in (directory, segments):
        folder.mkdir(parents=True, exist_ok=True)
        sealed.remove_half_written(folder)
    steps = sealed.numbers(directory)
    later = [step for step in steps if step > reached]
    if later:
        used = used_segments(directory, [step for step in steps if step <= reached])
        unused = [] if used is None else sorted(set(sealed.numbers(segments)) - used)
        paths = [*(directory / str(step) for step in later), *(segments / str(s) for s in unused)]
        sealed.set_aside(paths, directory.parent)


def rows_to_write(
    base: Placement, changed: dict[str, np.ndarray], row_bytes: dict[str, int]
) -> Rows:
    """Rows for the next segments: those changed since `base`, and those of its emptiest segments.

    So many of the latter that the segments in use then hold at most twice the bytes of the rows
    ever changed.
    """
    taken = {name: rounds > max(base.round, 0) for name, rounds in changed.items()}
    live = dict.fromkeys(base.held, 0)
    for name, where in base.where.items():
        for segment, count in zip(*np.unique(where[~taken[name]], return_counts=True)):
            if segment:
                live[int(segment)] += int(count) * row_bytes[name]
    size = {
        s: sum(count * row_bytes[name] for name, count in rows.items())
        for s, rows in base.held.items()
    }
    total = sum(int(taken[name].sum()) * row_bytes[name] for name in taken) + sum(
        size[s] for s in live if live[s]
    )
    bound = 2 * sum(int((rounds > 0).sum()) * row_bytes[name] for name, rounds in changed.items())
    for segment in sorted(filter(live.get, live), key=lambda s: live[s] / size[s]):
        if total <= bound:
            break
        total -= size[segment] - live[segment]
        taken = {name: mask | (base.where[name] == segment) for name, mask in taken.items()}
    return {name: np.flatnonzero(mask) for name, mask in taken.items()}


def pieces(rows: Rows, row_bytes: dict[str, int], limit: int) -> Iterator[Rows]:
    """Cuts rows into parts of about `limit` bytes."""
    cost = np.repeat([row_bytes[name] for name in rows], [len(x) for x in rows.values()])
    part = np.split(
        (np.cumsum(cost) - cost) // limit, np.cumsum([len(x) for x in rows.values()])[:-1]
    )
    for i in np.unique(np.concatenate(part)):
        yield {name: x[p == i] for (name, x), p in zip(rows.items(), part) if (p == i).any()}


def copy(
    simulation: Simulation, state: SimulationState, history: list[dict], base: Placement
) -> tuple[Copied, int]:
    """What a checkpoint after `base` is written from, and how many bytes of clients' states that
    is."""
    row_bytes = {
        name: _bytes(simulation.read_clients(state, name, np.zeros(1, np.int64)))
        for name in state.changed
    }
    rows = rows_to_write(base, state.changed, row_bytes)
    parts = (
        (piece, {name: simulation.read_clients(state, name, x) for name, x in piece.items()})
        for piece in pieces(rows, row_bytes, SEGMENT_BYTES)
    )
    small = jax.tree.map(plain, (state.servers, state.last_round, state.changed))
    size = sum(len(x) * row_bytes[name] for name, x in rows.items())
    return Copied(
        state.round, small, jax.tree.map(plain, state.waiting), list(history), parts
    ), size


def write_segments(segments: Path, copied: Copied, base: Placement) -> Placement:
    """Writes what changed since `base`; each segment is there as a whole or not at all."""
    where = {name: x.copy() for name, x in base.where.items()}
    held = dict(base.held)
    there = max(sealed.numbers(segments), default=0)
    if jax.process_count() > 1:
        there = int(multihost_utils.broadcast_one_to_all(np.int32(there)))
    # a number is never used twice
    for number, (piece, states) in enumerate(copied.parts, there + 1):
        tree = {name: (x.astype(np.int32), states[name]) for name, x in piece.items()}
        path = segments / str(number)
        save_tree(sealed.temporary(path), tree)
        if jax.process_index() == 0:
            sealed.place(path)
        for name, x in piece.items():
            where[name][x] = number
        held[number] = {name: len(x) for name, x in piece.items()}
    used = {segment for x in where.values() for segment in np.unique(x).tolist()}
    return Placement(copied.round, where, {s: rows for s, rows in held.items() if s in used})


def read(
    path: Path, simulation: Simulation
) -> tuple[SimulationState, Placement | None, list[dict]]:
    """A checkpoint; without a placement where later ones cannot build on it.

    Raises:
      Exception: of any kind, if a file is missing, damaged or of another simulation.
    """
    segments, held = segments_of(path.parent), held_segments(path)
    state = simulation.init()
    if not is_older(path):
        sealed.check(path)
    for segment, found in held.items():
        if found["seal"]:
            sealed.check(segments / str(segment), found["seal"])
    small = (state.servers, state.last_round, state.changed, state.changed, state.waiting)
    servers, last_round, changed, where, waiting = load_tree(path / "small", small)
    examples = {
        name: simulation.read_clients(state, name, np.zeros(1, np.int64)) for name in changed
    }
    for segment, found in held.items():
        template = {
            name: (np.zeros(m, np.int32), _repeated(examples[name], m))
            for name, m in found["rows"].items()
        }
        for name, (rows, states) in load_tree(segments / str(segment), template).items():
            newest = where[name][rows] == segment
            if newest.any():
                states = jax.tree.map(lambda x, keep=newest: x[keep], states)
                state = simulation.write_clients(state, name, rows[newest].astype(np.int64), states)
    small = {"servers": servers, "last_round": last_round, "changed": changed, "waiting": waiting}
    state = state._replace(round=int(path.name), **small)
    if is_older(path):
        return state, None, json.loads((path / "history" / "metadata").read_text())["rows"]
    placed = Placement(
        state.round, where, {segment: found["rows"] for segment, found in held.items()}
    )
    return state, placed, sealed.read_json(path, "history.json")


def is_older(path: Path) -> bool:
    """Whether a checkpoint was written before there were checksums; it can be read, and nothing is
    built on it."""
    return (path / "held").is_dir()


def held_segments(path: Path) -> dict[int, dict]:
    """Segment -> its "rows", see `Placement.held`, and its "seal", of a checkpoint. ValueError or
    OSError if it is damaged."""
    if is_older(path):
        held = json.loads((path / "held" / "metadata").read_text())
        return {int(s): {"rows": rows, "seal": None} for s, rows in held.items()}
    return {int(s): found for s, found in sealed.read_json(path, "segments.json").items()}


def used_segments(directory: Path, steps: Iterable[int]) -> set[int] | None:
    """The segments that these checkpoints refer to; None where one is damaged, and so all may be
    needed."""
    try:
        return {segment for step in steps for segment in held_segments(directory / str(step))}
    except (ValueError, OSError, AttributeError):
        return None


def delete_unused(directory: Path) -> None:
    """Deletes the segments that no checkpoint refers to."""
    segments, used = segments_of(directory), used_segments(directory, sealed.numbers(directory))
    for segment in sealed.numbers(segments) if used is not None else ():
        if segment not in used:
            sealed.remove(segments / str(segment))


def _together(what: str) -> None:
    """Waits for every process of the run."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def _repeated(example: PyTree, count: int) -> PyTree:
    """A view of `count` rows like the example's only one."""

    def repeat(x):
        return (jnp if is_key(x) else np).broadcast_to(x, (count, *x.shape[1:]))

    return jax.tree.map(repeat, example)


def _bytes(row: PyTree) -> int:
    # its number, and its states
    return 4 + sum(plain(leaf).nbytes for leaf in jax.tree.leaves(row))
