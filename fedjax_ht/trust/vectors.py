"""A round's uploads as comparable vectors: whole models, and rows of prototypes or heads.

The payload of an uplink is split into groups. All plain arrays together are one vector, the
client's model. Each row of a `Masked` leaf is a vector, such as a class's prototype, which is only
compared with other clients' rows of that class. If a mask is by entry, the leaf is one vector, of
which a client holds a part.

`Wire.positions` says which positions have the same meaning in two uplinks of a method.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core import wire
from fedjax_ht.core.context import Received


class Vectors(NamedTuple):
    """V vectors of each of P clients, in pieces along their entries.

    Attributes:
      values: pieces, float [P, V, D] each; 0 for entries that a client does not hold.
      held: a bool array per piece, broadcastable to it: the entries that clients hold.
      present: bool [P, V], the vectors that arrived.
    """

    values: tuple[jax.Array, ...]
    held: tuple[jax.Array, ...]
    present: jax.Array


class Layout(NamedTuple):
    """How one leaf of several buckets' uplinks maps to a piece of `Vectors`.

    Attributes:
      index: the leaf's index in `leaves_of` an uplink.
      shapes: shapes of a client's array, one per bucket.
      common: the elementwise maximum of these shapes.
      by_row: True if each row of the leaf is a vector; else the leaf is one, or a piece of one.
    """

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    shapes: tuple[tuple[int, ...], ...]
    common: tuple[int, ...]
    by_row: bool


class Piece(NamedTuple):
    """The arrays of one leaf, for all buckets' clients.

    Attributes:
      layout: the mapping back to the buckets' leaves.
      values: float [P, V, D]; entries that are not held are arbitrary.
      held: bool, broadcastable to `values`.
      sent: bool, broadcastable to [P, V]: rows in the leaf's mask.
    """

    layout: Layout
    values: jax.Array
    held: jax.Array
    sent: jax.Array


Uploads = list[Vectors]
PutBack = Callable[[Uploads], dict[str, Received]]


def comparable(received: dict[str, Received], nested: bool) -> list[dict[str, Received]]:
    """Groups the buckets whose uplinks can be compared.

    Args:
      received: bucket name -> uplinks, or their forms.
      nested: True if smaller uplinks are parts of larger ones, so that only numbers of axes must
        agree.

    Returns:
      All buckets together if their uplinks have the same shape; else each by itself.
    """
    kinds = set()
    for r in received.values():
        arrays = [leaf for leaf in wire.leaves_of(r.uplink) if not isinstance(leaf, wire.Metadata)]
        shapes = tuple(tuple(wire.values_of(leaf).shape[1:]) for leaf in arrays)
        structure = jax.tree.structure(r.uplink, is_leaf=wire.is_leaf)
        kinds.add((structure, tuple(map(len, shapes)) if nested else shapes))
    if len(kinds) == 1:
        return [received]
    return [{name: r} for name, r in received.items()]


def vectors_of(received: dict[str, Received]) -> tuple[Uploads, PutBack]:
    """Splits uplinks into vectors.

    Args:
      received: buckets that `comparable` has grouped.

    Returns:
      Groups of vectors in a fixed order: each `Masked` leaf, then the model. And a function that
      writes changed groups back to uplinks: a row that is no longer present is not sent, and a
      client whose model is no longer present has not arrived.
    """
    arrived = jnp.concatenate([r.arrived for r in received.values()])
    # Column i has leaf i of every bucket's uplink.
    columns = list(zip(*(wire.leaves_of(r.uplink) for r in received.values())))
    groups: Uploads = []
    layouts: list[list[Layout]] = []
    model: list[Piece] = []
    for i, column in enumerate(columns):
        if not wire.is_payload(column[0]):
            continue
        piece = _joined(i, column, len(arrived))
        if wire.is_masked(column[0]):
            groups.append(_vectors([piece], arrived[:, None] & piece.sent))
            layouts.append([piece.layout])
        else:
            model.append(piece)
    if model:
        groups.append(_vectors(model, arrived[:, None]))
        layouts.append([piece.layout for piece in model])

    def put_back(changed: Uploads) -> dict[str, Received]:
        new_columns, new_arrived = list(columns), arrived
        for vectors, group in zip(changed, layouts):
            if not group[0].by_row:
                new_arrived = new_arrived & vectors.present[:, 0]
            for layout, values in zip(group, vectors.values):
                column = columns[layout.index]
                new_columns[layout.index] = _separated(column, layout, values, vectors.present)
        out, start = {}, 0
        for b, (name, r) in enumerate(received.items()):
            stop = start + len(r.arrived)
            uplink = wire.from_leaves(r.uplink, [column[b] for column in new_columns])
            out[name] = r._replace(uplink=uplink, arrived=new_arrived[start:stop])
            start = stop
        return out

    return groups, put_back


def _joined(index: int, column: Sequence[Any], clients: int) -> Piece:
    """Stacks the buckets' leaves with the same index over clients; smaller arrays are padded."""
    arrays = list(map(wire.values_of, column))
    shapes = tuple(x.shape[1:] for x in arrays)
    common = tuple(map(max, zip(*shapes)))
    masks = [leaf.mask for leaf in column if wire.is_masked(leaf)]
    by_row = bool(masks) and masks[0].ndim < arrays[0].ndim
    row_axes = common[: masks[0].ndim - 1] if by_row else ()
    rows = math.prod(row_axes)

    def stacked(xs: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([_padded(x, common) for x in xs]).reshape(clients, rows, -1)

    values = stacked(arrays)
    held = sent = jnp.ones((1, 1, 1), bool)
    if len(set(shapes)) > 1:  # only larger arrays hold the entries beyond a smaller one
        held = stacked([jnp.ones(x.shape, bool) for x in arrays])
    if by_row:
        sent = jnp.concatenate([_padded(mask, row_axes) for mask in masks])
    elif masks:
        held = held & stacked(masks)
    return Piece(
        layout=Layout(index=index, shapes=shapes, common=common, by_row=by_row),
        values=values,
        held=held,
        sent=sent.reshape(-1, rows),
    )


def _padded(x: jax.Array, common: tuple[int, ...]) -> jax.Array:
    """Pads [P, *shape] to [P, *common] with zeros at the end of each axis."""
    widths = [(0, large - small) for small, large in zip(x.shape[1:], common)]
    return jnp.pad(x, [(0, 0), *widths])


def _vectors(pieces: Sequence[Piece], present: jax.Array) -> Vectors:
    """Builds vectors from pieces, with 0 for absent entries."""
    values = []
    for piece in pieces:
        # Entries that did not arrive or are not held may be NaN.
        known = present[..., None] & piece.held
        values.append(jnp.where(known, piece.values, 0))
    return Vectors(tuple(values), tuple(piece.held for piece in pieces), present)


def _separated(
    column: Sequence[Any], layout: Layout, values: jax.Array, present: jax.Array
) -> tuple:
    """Splits values [P, V, D], and present [P, V] if by row, into the buckets' leaves."""
    values, start, leaves = values.reshape(-1, *layout.common), 0, []
    for leaf, shape in zip(column, layout.shapes):
        old = wire.values_of(leaf)
        stop = start + len(old)
        within = tuple(slice(size) for size in shape)
        new = values[(slice(start, stop), *within)].astype(old.dtype)
        if wire.is_masked(leaf):
            mask = leaf.mask
            if layout.by_row:
                own = present[start:stop].reshape(-1, *layout.common[: mask.ndim - 1])
                mask = mask & own[tuple(map(slice, mask.shape))]
            new = leaf._replace(values=new, mask=mask)
        leaves.append(new)
        start = stop
    return tuple(leaves)
