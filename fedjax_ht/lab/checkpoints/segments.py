"""Arrays of a run in sealed folders, as .npz files with one pytree each.

A segment holds the client states that changed between two checkpoints, a tree per bucket. As in a
log-structured file system (Rosenblum and Ousterhout, ACM TOCS 1992), the states of the emptiest
segments move to the next one. The segments of a checkpoint thus hold at most twice the states that
have ever changed. Segments without a checkpoint that refers to them are deleted.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.files import plain_open
from fedjax_ht.lab.safe.arrays import opened_npz

ARRAYS = "arrays.npz"


def save_tree(path: Path, tree: PyTree) -> None:
    """Writes a pytree of arrays and typed keys into a new folder, as one .npz file.

    Arrays are named by the position of the leaf, not its path, so that a file does not depend on a
    method's types.

    Every process of a run must call this, since fetching an array that spans several processes
    involves all of them. Only the first one writes.

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
    """The tree that `save_tree` wrote, with the template's structure, shapes, dtypes and placement.

    Raises:
      Exception: of any type, if a file is missing, damaged or of another tree.
    """
    leaves, structure = jax.tree.flatten(template)
    with opened_npz(path / ARRAYS) as stored:
        restored = [_restored(stored.get(_name(i)), leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, restored)


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is an array of typed keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    """An array, or the key data of an array of typed keys, in host memory."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _name(position: int) -> str:
    return f"{position:05d}"


def _storable(array: np.ndarray) -> np.ndarray:
    """Views an array as a dtype of .npy files: bfloat16 and the like as integers of equal bits."""
    if array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _restored(stored: np.ndarray | None, leaf: Any) -> Any:
    """A stored array in the form of the template's leaf."""
    like = plain(leaf)
    expected = _storable(like)
    if stored is None or stored.shape != expected.shape or stored.dtype != expected.dtype:
        form = "nothing" if stored is None else f"{stored.dtype}{list(stored.shape)}"
        raise ValueError(f"it holds {form}, expected {like.dtype}{list(like.shape)}")
    # host arrays of a state must be writable
    value = np.require(stored.view(like.dtype), requirements="W")
    if is_key(leaf):
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    return jax.device_put(value, leaf.sharding) if isinstance(leaf, jax.Array) else value


Rows = dict[str, np.ndarray]  # bucket -> int64 [m], ascending rows of its stacked states
Part = tuple[Rows, dict[str, PyTree]]  # rows, and bucket -> their states

# a missing file, or a folder in its place; other errors may be temporary
_DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Placement(NamedTuple):
    """The segments that hold a checkpoint's client states.

    Attributes:
      round: the number of the checkpoint's round; -1 for no checkpoint.
      where: bucket -> int32 [rows], the segment with each row's newest state; 0 for the initial
        state.
      held: segment -> bucket -> number of rows in it, outdated ones included.
    """

    round: int
    where: dict[str, np.ndarray]
    held: dict[int, dict[str, int]]


def beside(directory: Path) -> Path:
    """The folder with the segments of a folder of checkpoints."""
    return directory.with_name(f"{directory.name}.segments")


def rows_to_write(
    base: Placement, changed: dict[str, np.ndarray], row_bytes: dict[str, int]
) -> Rows:
    """Rows for the next segments: those changed since `base`, and those of its emptiest segments.

    It takes as many of the latter as needed for the segments in use to hold at most twice the bytes
    of the rows ever changed.

    Args:
      base: the placement of the checkpoint that the next one builds on.
      changed: bucket -> int32 [rows], the round of each row's last change; 0 for never.
      row_bytes: bucket -> bytes of one row.
    """
    taken, bound = {}, 0
    for name, rounds in changed.items():
        taken[name] = rounds > max(base.round, 0)
        bound += 2 * int((rounds > 0).sum()) * row_bytes[name]
    total = sum(int(mask.sum()) * row_bytes[name] for name, mask in taken.items())
    live = _live_bytes(base, taken, row_bytes)
    sizes = {}  # segment -> bytes of all its rows
    for segment, counts in base.held.items():
        sizes[segment] = sum(count * row_bytes[name] for name, count in counts.items())
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
    """Segment -> bytes of the rows whose newest state it holds, without the rows in `taken`.

    Segments without any such row are omitted.
    """
    live = dict.fromkeys(base.held, 0)
    for name, where in base.where.items():
        numbers, counts = np.unique(where[~taken[name]], return_counts=True)
        for segment, count in zip(numbers.tolist(), counts.tolist()):
            if segment:  # 0 is the initial state, which no segment holds
                live[segment] += count * row_bytes[name]
    return {segment: size for segment, size in live.items() if size}


def pieces(rows: Rows, row_bytes: dict[str, int], limit: int) -> Iterator[Rows]:
    """Splits rows into parts of about `limit` bytes."""
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


def write(segments: Path, parts: Iterable[Part], round: int, base: Placement) -> Placement:
    """Writes the states that changed since `base`, each segment atomically.

    Args:
      segments: folder of the segments.
      parts: rows and their states, one part per segment.
      round: the round of the checkpoint.
      base: the placement of the checkpoint that it builds on.
    """
    where, held = copy.deepcopy(base.where), dict(base.held)
    last = max(sealed.numbers(segments), default=0)
    if jax.process_count() > 1:
        # the first process's count: on other processes' file systems a folder may appear later
        last = int(multihost_utils.broadcast_one_to_all(np.int32(last)))
    # numbers are never reused
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


def read(
    folder: Path,
    counts: Mapping[str, int],
    where: Mapping[str, np.ndarray],
    examples: Mapping[str, PyTree],
) -> Iterator[tuple[str, np.ndarray, PyTree]]:
    """Yields a bucket, int64 rows and their states, for rows whose newest state is in a segment.

    Args:
      folder: the folder of the segment, named by its number.
      counts: bucket -> number of rows in the segment, see `Placement.held`.
      where: the segments of the newest states, see `Placement.where`.
      examples: bucket -> the state of one row.

    Raises:
      Exception: of any type, if the segment is damaged or has other buckets.
    """
    template = {}
    for name, count in counts.items():
        if not 0 <= count <= len(where[name]):
            raise ValueError(f"{folder} has {count} rows of {name}")
        template[name] = (np.zeros(count, np.int32), _repeated(examples[name], count))
    for name, (rows, states) in load_tree(folder, template).items():
        rows = rows.astype(np.int64)
        newest = where[name][rows] == int(folder.name)
        if newest.any():
            yield name, rows[newest], jax.tree.map(lambda x, keep=newest: x[keep], states)


def _repeated(example: PyTree, count: int) -> PyTree:
    """A view that repeats the example's only row `count` times."""

    def repeat(x):
        broadcast_to = jnp.broadcast_to if is_key(x) else np.broadcast_to
        return broadcast_to(x, (count, *x.shape[1:]))

    return jax.tree.map(repeat, example)


def bytes_of_row(example: PyTree) -> int:
    """Bytes of a row in a segment: its int32 number and its states."""
    return 4 + sum(plain(leaf).nbytes for leaf in jax.tree.leaves(example))


def held(path: Path) -> dict[int, dict]:
    """A checkpoint's segments -> their "rows" (see `Placement.held`) and "seal".

    Raises:
      ValueError, OSError: the file is damaged.
    """
    return {int(s): entry for s, entry in sealed.read_json(path, "segments.json").items()}


def with_seals(segments: Path, held: Mapping[int, dict[str, int]]) -> dict[str, dict]:
    """The content of segments.json: segment -> its "rows" and "seal"; see `held`."""
    entries = {}
    for segment, rows in held.items():
        seal = sealed.seal_of(segments / str(segment))
        entries[str(segment)] = {"rows": rows, "seal": seal}
    return entries


def unused(directory: Path, steps: Iterable[int]) -> list[Path]:
    """The segments to which none of these checkpoints refers, ascending.

    None if a checkpoint is damaged, since it may need any of them.

    Raises:
      OSError: a checkpoint cannot be read at the moment, so that its segments are unknown.
    """
    segments, used = beside(directory), set()
    try:
        for step in steps:
            used |= held(directory / str(step)).keys()
    except (ValueError, AttributeError, *_DAMAGE):
        return []
    return [segments / str(n) for n in sealed.numbers(segments) if n not in used]


def delete_unused(directory: Path) -> None:
    """Deletes the segments that no checkpoint refers to."""
    for path in unused(directory, sealed.numbers(directory)):
        sealed.remove(path)
