"""Checkpoints with orbax that write only what changed: the newest few stay, and a run goes on from them bit for bit.

A run's first client states are a pure function of its config and seed, so a client that never changed is not stored.
A checkpoint writes the states that changed since the one before it as a segment, and beside it what is small: server,
history, and for every client which segment holds its newest state. Restoring is `simulation.init()` and the states of
the segments written over it. Segments that no checkpoint refers to any more are deleted. As in a log-structured file
system (Rosenblum and Ousterhout, ACM TOCS 1992) the emptiest segments' states move along into the next one, so that the
segments of one checkpoint hold at most twice the states that have ever changed.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from fedjax_ht.core.method import PyTree
from fedjax_ht.simulation.simulation import Simulation, SimulationState

SEGMENT_BYTES = 64 << 20  # more is cut into several segments, so that host memory needs no second copy of all states
COPIED_BYTES = 4 << 30  # for more the run waits, until all is written

Rows = dict[str, np.ndarray]  # bucket -> int64 [m], ascending rows of its stacked states


class Checkpointer(NamedTuple):
    """Attributes:
    save: (state, history) -> None; atomic, named by the state's round. It returns when all is on disk; in the
      background, when what changed is copied, and what then goes wrong is raised by the next `save` or `wait`. The
      round that was saved or restored last is left as it is. Checkpoints of later rounds than that one are of another
      course of the run, such as broken ones that were passed over; they go.
    wait: () -> None; returns when all that was saved is on disk.
    restore: (warn) -> (state, history), or None if there is none. A checkpoint that cannot be read is passed over with
      one line to `warn`, for the one before it. On another kind of device than it was saved on, initial states may
      differ in their last bit.
    """

    save: Callable[[SimulationState, list[dict]], None]
    wait: Callable[[], None]
    restore: Callable[..., tuple[SimulationState, list[dict]] | None]


class Placement(NamedTuple):
    """Where a checkpoint's client states are.

    Attributes:
      round: the checkpoint's; -1 for no checkpoint.
      where: bucket -> int32 [rows], the segment with each row's newest state, 0 where that is still the initial one.
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
      history: of the run.
      parts: rows and their states, one part a segment; a generator reads each when it is written.
    """

    round: int
    small: PyTree
    history: list[dict]
    parts: Iterable[tuple[Rows, dict[str, PyTree]]]


def make_checkpointer(
    directory: Path | str, simulation: Simulation, keep: int = 2, background: bool = False
) -> Checkpointer:
    """Checkpoints of a simulation in `directory` and "`directory`.segments", of which the newest `keep` stay.

    Args:
      background: write in a thread while the run goes on. With several processes, or more than `COPIED_BYTES` to
        write, the run waits all the same.

    Raises:
      ValueError: `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; it must be at least 1")
    directory = Path(directory).absolute()
    segments = directory.with_name(f"{directory.name}.segments")
    base: Placement | None = None  # of the checkpoint that the run has last saved or been restored from
    pool = ThreadPoolExecutor(1, "checkpoint") if background and jax.process_count() == 1 else None
    writing: Future | None = None

    def save(state: SimulationState, history: list[dict]) -> None:
        nonlocal base, writing
        wait()
        there = base is not None and all((segments / str(s)).exists() for s in base.held)
        if not there or base.round > state.round:
            base = Placement(-1, {name: np.zeros(len(x), np.int32) for name, x in state.changed.items()}, {})
        copied, size = copy(simulation, state, history, base)
        if pool is None or size > COPIED_BYTES:
            write(copied)
        else:
            writing = pool.submit(write, copied._replace(parts=list(copied.parts)))

    def wait() -> None:
        nonlocal writing
        done, writing = writing, None
        if done is not None:
            done.result()

    def write(copied: Copied) -> None:
        nonlocal base
        with manager(directory, cleanup_tmp_directories=True) as m:
            if copied.round == base.round and copied.round in m.all_steps():
                return
            placed = write_segments(segments, copied, base)
            if copied.round in m.all_steps():  # of another course of the run
                m.delete(copied.round)
            items = {
                "small": ocp.args.StandardSave(_pack((*copied.small, placed.where))),
                "held": ocp.args.JsonSave({str(s): rows for s, rows in placed.held.items()}),
                "history": ocp.args.JsonSave({"rows": copied.history}),
            }
            m.save(copied.round, args=ocp.args.Composite(**items), force=True)
            past = [step for step in m.all_steps() if step <= base.round]
            base, kept = placed, [*sorted(past), copied.round][-keep:]
            for step in set(m.all_steps()) - set(kept):
                m.delete(step)
            delete_unused(segments, m, kept)

    def restore(warn: Callable[[str], None] = logging.warning):
        nonlocal base
        wait()
        if not directory.exists():
            return None
        with manager(directory) as m:
            for step in sorted(m.all_steps(), reverse=True):
                try:
                    state, base, history = read(m, step, segments, simulation)
                    return state, history
                except Exception as error:  # whatever is wrong with one file, an older checkpoint may be whole
                    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                    warn(f"checkpoint {directory / str(step)} cannot be read ({reason}); trying the one before it")
        return None

    return Checkpointer(save, wait, restore)


def manager(directory: Path, **options) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(create=True, enable_async_checkpointing=False, **options)
    return ocp.CheckpointManager(directory, options=options)


def rows_to_write(base: Placement, changed: dict[str, np.ndarray], row_bytes: dict[str, int]) -> Rows:
    """Rows for the next segments: those changed since `base`, and those of its emptiest segments.

    So many of the latter that the segments in use then hold at most twice the bytes of the rows ever changed.
    """
    taken = {name: rounds > max(base.round, 0) for name, rounds in changed.items()}
    live = dict.fromkeys(base.held, 0)
    for name, where in base.where.items():
        for segment, count in zip(*np.unique(where[~taken[name]], return_counts=True)):
            if segment:
                live[int(segment)] += int(count) * row_bytes[name]
    size = {s: sum(count * row_bytes[name] for name, count in rows.items()) for s, rows in base.held.items()}
    total = sum(int(taken[name].sum()) * row_bytes[name] for name in taken) + sum(size[s] for s in live if live[s])
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
    part = np.split((np.cumsum(cost) - cost) // limit, np.cumsum([len(x) for x in rows.values()])[:-1])
    for i in np.unique(np.concatenate(part)):
        yield {name: x[p == i] for (name, x), p in zip(rows.items(), part) if (p == i).any()}


def copy(simulation: Simulation, state: SimulationState, history: list[dict], base: Placement) -> tuple[Copied, int]:
    """What a checkpoint after `base` is written from, and how many bytes of clients' states that is."""
    row_bytes = {name: _bytes(simulation.read_clients(state, name, np.zeros(1, np.int64))) for name in state.changed}
    rows = rows_to_write(base, state.changed, row_bytes)
    parts = (
        (piece, {name: simulation.read_clients(state, name, x) for name, x in piece.items()})
        for piece in pieces(rows, row_bytes, SEGMENT_BYTES)
    )
    small = jax.tree.map(_plain, (state.servers, state.last_round, state.changed))
    size = sum(len(x) * row_bytes[name] for name, x in rows.items())
    return Copied(state.round, small, list(history), parts), size


def write_segments(segments: Path, copied: Copied, base: Placement) -> Placement:
    """Writes what changed since `base`; each segment is there as a whole or not at all."""
    where = {name: x.copy() for name, x in base.where.items()}
    held = dict(base.held)
    there = max((int(p.name) for p in segments.glob("*") if p.name.isdigit()), default=0)
    if jax.process_count() > 1:
        there = int(multihost_utils.broadcast_one_to_all(np.int32(there)))
    for number, (piece, states) in enumerate(copied.parts, there + 1):  # a number is never used twice
        tree = {name: (x.astype(np.int32), states[name]) for name, x in piece.items()}
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(segments / str(number), args=ocp.args.StandardSave(_pack(tree)))
        for name, x in piece.items():
            where[name][x] = number
        held[number] = {name: len(x) for name, x in piece.items()}
    used = set(np.concatenate([np.unique(x) for x in where.values()]).tolist())
    return Placement(copied.round, where, {s: rows for s, rows in held.items() if s in used})


def read(
    steps: ocp.CheckpointManager, step: int, segments: Path, simulation: Simulation
) -> tuple[SimulationState, Placement, list[dict]]:
    """The checkpoint of a round.

    Raises:
      Exception: of any kind, if a file is missing, damaged or of another simulation.
    """
    items = {"small": ocp.args.StandardRestore()} | {name: ocp.args.JsonRestore() for name in ("held", "history")}
    found = steps.restore(step, args=ocp.args.Composite(**items))
    state = simulation.init()
    small = (state.servers, state.last_round, state.changed, state.changed)
    servers, last_round, changed, where = _unpack(small, found["small"])
    held = {int(s): rows for s, rows in found["held"].items()}
    examples = {name: simulation.read_clients(state, name, np.zeros(1, np.int64)) for name in changed}
    for segment, counts in held.items():
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            stored = checkpointer.restore(segments / str(segment))
        template = {name: (np.zeros(m, np.int32), _repeated(examples[name], m)) for name, m in counts.items()}
        for name, (rows, states) in _unpack(template, stored).items():
            newest = where[name][rows] == segment
            if newest.any():
                states = jax.tree.map(lambda x, keep=newest: x[keep], states)
                state = simulation.write_clients(state, name, rows[newest].astype(np.int64), states)
    state = state._replace(round=step, servers=servers, last_round=last_round, changed=changed)
    return state, Placement(step, where, held), found["history"]["rows"]


def delete_unused(segments: Path, steps: ocp.CheckpointManager, kept: list[int]) -> None:
    """Deletes the segments that none of these checkpoints refers to, and what a killed process left half written."""
    used = set()
    for step in kept:
        try:
            used |= set(steps.restore(step, args=ocp.args.Composite(held=ocp.args.JsonRestore()))["held"])
        except Exception:  # what a damaged checkpoint refers to is unknown, so all stay until it has gone
            return
    for path in segments.glob("*") if jax.process_index() == 0 else ():
        if path.name not in used:
            shutil.rmtree(path)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _pack(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves that hold anything, by position: orbax takes no empty array and need not know a method's types."""
    leaves = map(_plain, jax.tree.leaves(tree))
    return {f"{i:05d}": leaf for i, leaf in enumerate(leaves) if leaf.size}


def _unpack(template: PyTree, stored: dict[str, np.ndarray]) -> PyTree:
    """The tree that `_pack` took apart, of the template's structure, shapes, dtypes and placement."""
    leaves, structure = jax.tree.flatten(template)
    for i, leaf in enumerate(leaves):
        like = _plain(leaf)
        value = stored[f"{i:05d}"] if like.size else like
        if value.shape != like.shape or value.dtype != like.dtype:
            raise ValueError(f"it holds {value.dtype}{list(value.shape)}, expected {like.dtype}{list(like.shape)}")
        value = (
            jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
            if _is_key(leaf)
            else np.require(value, requirements="W")
        )
        leaves[i] = jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else value
    return jax.tree.unflatten(structure, leaves)


def _repeated(example: PyTree, count: int) -> PyTree:
    """A view of `count` rows like the example's only one."""
    repeat = lambda x: (jnp if _is_key(x) else np).broadcast_to(x, (count, *x.shape[1:]))  # noqa: E731
    return jax.tree.map(repeat, example)


def _bytes(row: PyTree) -> int:
    return 4 + sum(_plain(leaf).nbytes for leaf in jax.tree.leaves(row))  # its number, and its states
