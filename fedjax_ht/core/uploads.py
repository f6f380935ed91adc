"""A round's uploads as vectors that can be compared: whole models, rows of prototypes or heads by
class.

What a client sends falls into groups. All plain arrays of an uplink are one vector, its model. Of a
`Masked` leaf each row is a vector, a class's prototype say, which is compared with other clients'
rows of that class alone; where single entries are masked they are one vector of which a client
holds a part. `Metadata` and integers are no vectors.

Which positions mean the same in two uplinks is for the method to say, `Wire.positions`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.method import Received
from fedjax_ht.core.wire import Masked, Metadata


class Vectors(NamedTuple):
    """V vectors of each of P clients, in pieces along their entries.

    Attributes:
      values: pieces, float [P, V, D] each; 0 where an entry is not there.
      held: for each piece bool, broadcastable to it: which entries a client's vectors have at all.
      present: bool [P, V], which vectors arrived.
    """

    values: tuple[jax.Array, ...]
    held: tuple[jax.Array, ...]
    present: jax.Array


class Leaf(NamedTuple):
    """One leaf of the uplinks of buckets that are compared.

    Attributes:
      shapes: of a client's array in each bucket.
      common: the shape that holds all of them.
      by_row: whether each of its rows is a vector; else it is one, or a piece of one.
    """

    shapes: tuple[tuple[int, ...], ...]
    common: tuple[int, ...]
    by_row: bool


Uploads = list[Vectors]
PutBack = Callable[[Uploads], dict[str, Received]]


def comparable(received: dict[str, Received], nested: bool) -> list[dict[str, Received]]:
    """The buckets by what can be compared: all together where their uplinks have one shape, or
    where smaller ones lie in larger ones (`nested`), else one by one."""
    shapes = {name: _shapes(r.uplink) for name, r in received.items()}
    first = next(iter(shapes.values()))
    together = all(own == first if not nested else own[0] == first[0] for own in shapes.values())
    return [received] if together else [{name: r} for name, r in received.items()]


def vectors_of(received: dict[str, Received]) -> tuple[Uploads, PutBack]:
    """The vectors of buckets that `comparable` has put together, groups in a fixed order; and a
    function that puts such groups, changed, back in place: vectors that are no longer present have
    not arrived."""
    arrived = jnp.concatenate([r.arrived for r in received.values()])
    columns = list(zip(*(leaves_of(r.uplink) for r in received.values())))
    groups, places, model = [], [], []
    for i, column in enumerate(columns):
        if not is_payload(column[0]):
            continue
        leaf, values, held, rows = _joined(column, len(arrived))
        if isinstance(column[0], Masked):
            groups.append(_clean([values], [held], arrived[:, None] & rows))
            places.append([(i, leaf)])
        else:
            model.append((i, leaf, values, held))
    if model:
        _, _, values, held = zip(*model)
        groups.append(_clean(values, held, arrived[:, None]))
        places.append([(i, leaf) for i, leaf, _, _ in model])

    def put_back(changed: Uploads) -> dict[str, Received]:
        new, left = list(columns), arrived
        for vectors, pieces in zip(changed, places):
            by_row = pieces[0][1].by_row
            left = left if by_row else left & vectors.present[:, 0]
            for (i, leaf), values in zip(pieces, vectors.values):
                new[i] = _separated(columns[i], leaf, values, vectors.present if by_row else None)
        ends, out = _ends(received), {}
        for b, (name, r) in enumerate(received.items()):
            structure = jax.tree.structure(r.uplink, is_leaf=is_leaf)
            uplink = jax.tree.unflatten(structure, [column[b] for column in new])
            out[name] = Received(uplink, r.info, left[ends[b] : ends[b + 1]])
        return out

    return groups, put_back


def is_leaf(x: Any) -> bool:
    """Whether an uplink's pytree ends here; arrays are leaves anyway."""
    return isinstance(x, Masked | Metadata)


def leaves_of(uplink: Any) -> list:
    """Arrays, `Masked` and `Metadata`, in a fixed order."""
    return jax.tree.leaves(uplink, is_leaf=is_leaf)


def with_deviations(received: dict[str, Received]) -> dict[str, Received]:
    """Takes square roots of the running variances in uplinks ("var" below "stats"), to compare
    uploads by.

    A client whose inputs are s times another's has s times its running means and deviations, but
    s^2 times its variances.
    """

    def deviation(path: tuple, leaf: Any) -> Any:
        names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        if is_leaf(leaf) or "stats" not in names or names[-1] != "var":
            return leaf
        return jnp.sqrt(jnp.abs(leaf))  # a client may send any number

    return {
        name: r._replace(
            uplink=jax.tree_util.tree_map_with_path(deviation, r.uplink, is_leaf=is_leaf)
        )
        for name, r in received.items()
    }


def values_of(leaf: Any) -> jax.Array:
    """The array of a leaf, sent or not."""
    return leaf.values if isinstance(leaf, Masked) else leaf


def is_payload(leaf: Any) -> bool:
    """Whether a leaf holds floats that are neither counts nor indices."""
    return not isinstance(leaf, Metadata) and jnp.issubdtype(values_of(leaf).dtype, jnp.floating)


def _shapes(uplink: Any) -> tuple:
    """The structure of an uplink with the number of axes of each leaf, and the leaves' shapes."""
    shapes = [
        values_of(leaf).shape[1:] for leaf in leaves_of(uplink) if not isinstance(leaf, Metadata)
    ]
    return (jax.tree.structure(uplink, is_leaf=is_leaf), [len(s) for s in shapes]), shapes


def _joined(column: Sequence[Any], clients: int) -> tuple[Leaf, jax.Array, jax.Array, jax.Array]:
    """Buckets' leaves as one: how, the values [P, V, D], the entries held, broadcastable to them,
    and the rows that were sent, bool broadcastable to [P, V]."""
    arrays = [values_of(leaf) for leaf in column]
    shapes = tuple(x.shape[1:] for x in arrays)
    common = tuple(max(sizes) for sizes in zip(*shapes))
    masks = [leaf.mask for leaf in column if isinstance(leaf, Masked)]
    by_row = bool(masks) and masks[0].ndim < arrays[0].ndim
    v = math.prod(masks[0].shape[1:]) if by_row else 1
    values = jnp.concatenate([_fill(x, common) for x in arrays]).reshape(clients, v, -1)
    held = sent = jnp.ones((1, 1, 1), bool)
    if len(set(shapes)) > 1:
        held = jnp.concatenate([_fill(jnp.ones(x.shape, bool), common) for x in arrays]).reshape(
            clients, v, -1
        )
    if by_row:
        sent = jnp.concatenate(masks)
    elif masks:
        held = held & jnp.concatenate([_fill(mask, common) for mask in masks]).reshape(
            clients, v, -1
        )
    return Leaf(shapes, common, by_row), values, held, sent.reshape(-1, v)


def _fill(x: jax.Array, common: tuple[int, ...]) -> jax.Array:
    """[P, *shape] as [P, *common], zeros behind each axis."""
    return jnp.pad(x, [(0, 0), *((0, large - own) for own, large in zip(x.shape[1:], common))])


def _clean(values: Sequence[jax.Array], held: Sequence[jax.Array], present: jax.Array) -> Vectors:
    """What is not there may be anything, and becomes 0."""
    there = [jnp.where(present[..., None] & h, x, 0) for x, h in zip(values, held)]
    return Vectors(tuple(there), tuple(held), present)


def _separated(
    column: Sequence[Any], leaf: Leaf, values: jax.Array, present: jax.Array | None
) -> tuple:
    """Values [P, V, D], and of rows who is present [P, V], in the form of the buckets' leaves."""
    values, start, out = values.reshape(-1, *leaf.common), 0, []
    for old, shape in zip(column, leaf.shapes):
        stop = start + len(values_of(old))
        own = values[(slice(start, stop), *(slice(size) for size in shape))].astype(
            values_of(old).dtype
        )
        if isinstance(old, Masked):
            own = Masked(
                own,
                old.mask
                if present is None
                else old.mask & present[start:stop].reshape(old.mask.shape),
            )
        out.append(own)
        start = stop
    return tuple(out)


def _ends(received: dict[str, Received]) -> list[int]:
    """Where each bucket's clients begin, and the end."""
    ends = [0]
    for r in received.values():
        ends.append(ends[-1] + len(r.arrived))
    return ends
