"""The content of a checkpoint: copied from a run's state, and put together again from its files."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.keys import check_generator
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.segments import (
    Part,
    Placement,
    held_segments,
    pieces,
    rows_to_write,
    segments_of,
)
from fedjax_ht.lab.checkpoints.trees import is_key, load_tree, plain
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState

# more is cut into several segments, so that host memory needs no second copy of all states
SEGMENT_BYTES = 64 << 20


RANDOM = "random.json"
"""File of a checkpoint with the random generator of its run; the oldest of this format lack it."""


class Copied(NamedTuple):
    """A state in host memory, from which a checkpoint is written.

    Attributes:
      round: the number of the state's round.
      small: (server, last_round, changed).
      waiting: uploads that arrive in a later round, as `SimulationState.waiting` holds them.
      history: rows of the run's history.
      parts: rows and their states, one part a segment; a generator reads each when it is written.
      size: bytes of the clients' states in `parts`.
    """

    round: int
    small: PyTree
    waiting: PyTree
    history: Sequence[Row]
    parts: Iterable[Part]
    size: int


def copy(
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
        waiting=jax.tree.map(plain, state.waiting),
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
    if (path / RANDOM).exists():
        check_generator(dict(sealed.read_json(path, RANDOM)), str(path))
    state = simulation.init()
    for segment, entry in held.items():
        sealed.check(segments_of(path.parent) / str(segment), entry["seal"])
    # `where` has the form of `changed`: bucket -> int32 [rows]
    template = (state.server, state.last_round, state.changed, state.changed, state.waiting)
    server, last_round, changed, where, waiting = load_tree(path / "small", template)
    for segment, entry in held.items():
        folder = segments_of(path.parent) / str(segment)
        state = _read_segment(folder, entry["rows"], where, simulation=simulation, state=state)
    state = state._replace(
        round=int(path.name),
        server=server,
        last_round=last_round,
        changed=changed,
        waiting=waiting,
    )
    rows = {segment: entry["rows"] for segment, entry in held.items()}
    return state, Placement(state.round, where, rows), sealed.read_json(path, "history.json")


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
