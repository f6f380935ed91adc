"""Messages between server and clients: their leaves, payload and cost.

A message is a pytree: `broadcast` returns the downlink, `client_update` the uplink. A plain array
is sent whole. Two wrappers are also leaves of a message:

* `Masked(values, mask)`: only rows whose mask is True are sent, each with its index unless their
  number determines which they are.
* `Metadata(value)`: counts and the like, whose cost is counted separately from the payload.

The payload is all floating-point arrays outside `Metadata`. Code that compares, clips, sums or
perturbs messages uses the functions of this module.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Integer, Key, Shaped

from fedjax_ht.check.options import NonNegative, Share, checked
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree

INDEX_BYTES = 4  # an int32 index

Late = Literal["lost", "arrives"]
"""Fate of an upload that misses its round's deadline: dropped, or received in a later round."""


@jax.tree_util.register_static  # no leaf of a message, but part of its structure
@dataclasses.dataclass(frozen=True)
class Pattern:
    """The rows that a `Masked` sends, if their number alone determines which they are.

    Attributes:
      mask: (shape of the mask, number of sent rows) -> the mask, a bool NumPy array.
    """

    mask: Callable[[tuple[int, ...], int], np.ndarray]


def first_rows(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Returns the mask of the first `number` rows, a bool array of this shape."""
    return (np.arange(math.prod(shape)) < number).reshape(shape)


FIRST_ROWS = Pattern(first_rows)
"""All rows before some row, which includes all and none."""


@jax.tree_util.register_static  # no leaf of a message, but part of its structure
@dataclasses.dataclass(frozen=True)
class Shortest:
    """Sends positions as indices of sent rows, or as one bit per row, whichever is shorter.

    Without it or a pattern, positions are always sent as indices.
    """


SHORTEST = Shortest()
"""For masks with many rows, such as one per entry of a model."""


class Masked(NamedTuple):
    """An array of which only some rows are sent.

    Attributes:
      values: the array, [*m, *rest].
      mask: bool [*m], True for rows that are sent. The receiver never reads the others.
      pattern: the `Pattern` of rows, if their number determines them; None sends an index per row,
        `SHORTEST` sends bits if these are shorter.
    """

    values: Shaped[Array, "..."]
    mask: Bool[Array, "*m"]
    pattern: Pattern | Shortest | None = None


class Metadata(NamedTuple):
    """A part of a message outside the payload, such as sample counts.

    Attributes:
      value: an array or a `Masked`.
    """

    value: PyTree


class WireCost(NamedTuple):
    """Elements and bytes of one message; ints, or uint32 scalars if they depend on a mask.

    Attributes:
      payload_elements, payload_bytes: sizes of arrays, and of sent rows of `Masked`.
      metadata_elements, metadata_bytes: sizes of `Metadata`, and of the indices of sent rows.
    """

    payload_elements: Integer[HostArray, "*clients"] | int
    payload_bytes: Integer[HostArray, "*clients"] | int
    metadata_elements: Integer[HostArray, "*clients"] | int
    metadata_bytes: Integer[HostArray, "*clients"] | int

    @property
    def bytes(self) -> Integer[HostArray, "*clients"] | int:
        """Payload and metadata."""
        return self.payload_bytes + self.metadata_bytes


# Leaves


def is_masked(x: Any) -> bool:
    """Returns True for `Masked`; as `is_leaf` of a tree map, it also finds those in `Metadata`."""
    return isinstance(x, Masked)


def is_leaf(x: Any) -> bool:
    """Returns True for `Masked` and `Metadata`, which are leaves of a message."""
    return isinstance(x, Masked | Metadata)


def leaves_of(message: PyTree) -> list:
    """Returns the arrays, `Masked` and `Metadata` of a message, in the order of `jax.tree`."""
    return jax.tree.leaves(message, is_leaf=is_leaf)


def from_leaves(message: PyTree, leaves: Sequence) -> PyTree:
    """Builds a message of the same structure from new leaves; the inverse of `leaves_of`."""
    return jax.tree.unflatten(jax.tree.structure(message, is_leaf=is_leaf), leaves)


def values_of(leaf: Any) -> Shaped[Array, "..."]:
    """Returns the array of a leaf other than `Metadata`, including rows that are not sent."""
    return leaf.values if is_masked(leaf) else leaf


# Sent rows


def over_rows(x: Any, values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Appends axes of length 1 to a per-row array [*m], so that it broadcasts to [*m, *rest]."""
    return x.reshape(x.shape + (1,) * (values.ndim - x.ndim))


def sent_rows(leaf: Any) -> Bool[Array, "..."]:
    """Returns which entries of a leaf are sent: bool, broadcastable to its array."""
    if is_masked(leaf):
        return over_rows(leaf.mask, leaf.values)
    return jnp.array(True)


def dense(message: PyTree) -> PyTree:
    """Replaces every `Masked` by its values, with zeros where nothing is sent.

    Args:
      message: any pytree; a `Masked` inside `Metadata` is also replaced.
    """

    def filled(leaf):
        if not is_masked(leaf):
            return leaf
        # `where`, not a product: rows that are not sent may hold NaN.
        return jnp.where(sent_rows(leaf), leaf.values, 0)

    return jax.tree.map(filled, message, is_leaf=is_masked)


def sent(message: PyTree) -> PyTree:
    """Sets rows of a pytree that are not sent to zero, and keeps the masks."""

    def cleared(leaf):
        return leaf._replace(values=dense(leaf)) if is_masked(leaf) else leaf

    return jax.tree.map(cleared, message, is_leaf=is_masked)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Returns whether every float that would be read is finite; masked entries are not read."""
    broken = []
    for leaf in jax.tree.leaves(sent(tree)):
        if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            broken.append(~jnp.all(jnp.isfinite(leaf)))
    # A dot product: XLA would repeat a chain of `and` at every leaf whose update depends on it.
    # Compiling MobileNetV2's round took 56 s on 2 cores with it, and takes 33 s without.
    flags = jnp.stack([jnp.array(False), *broken]).astype(jnp.float32)
    return jnp.dot(flags, jnp.ones_like(flags)) == 0


# Payload


def is_payload(leaf: Any) -> bool:
    """Returns True for a leaf of floats; counts, indices and `Metadata` are not payload."""
    if isinstance(leaf, Metadata):
        return False
    values = values_of(leaf)  # a Python number has no dtype
    return jnp.issubdtype(getattr(values, "dtype", type(values)), jnp.floating)


def payload_leaves(message: PyTree) -> dict[int, Any]:
    """Returns a message's payload, {index in `leaves_of`: array or `Masked`}, in order."""
    return {place: leaf for place, leaf in enumerate(leaves_of(message)) if is_payload(leaf)}


def with_payload(message: PyTree, arrays: dict[int, Shaped[Array, "..."]]) -> PyTree:
    """Replaces arrays of a message's payload; masks and all other leaves stay.

    Args:
      message: a message of any structure.
      arrays: {index in `leaves_of(message)`: new array, or new `Masked.values`}.
    """
    leaves = leaves_of(message)
    for place, values in arrays.items():
        leaf = leaves[place]
        leaves[place] = leaf._replace(values=values) if is_masked(leaf) else values
    return from_leaves(message, leaves)


# Cost


def bitmap_bytes(rows: int) -> int:
    """Returns the bytes of a bitmap with one bit per row."""
    return (rows + 7) // 8


def takes_bits(rows: int, sent: Integer[HostNumber, ""] | int) -> Bool[HostNumber, ""] | bool:
    """Returns whether bits are shorter than indices, for `sent` rows out of `rows`."""
    return bitmap_bytes(rows) < INDEX_BYTES * sent


def position_cost(
    positions: Any, rows: int, sent: Integer[Array, ""] | int
) -> tuple[Integer[Array, ""] | int, Integer[Array, ""] | int]:
    """Counts the elements and bytes that encode which rows are sent.

    Args:
      positions: `Masked.pattern`: None for indices, `SHORTEST`, or a pattern, which costs nothing.
      rows: number of rows of the mask.
      sent: number of rows that are sent, a uint32 scalar.

    Returns:
      The number of indices, or of bytes of the bitmap; and their bytes.
    """
    if positions is None:
        return sent, sent * INDEX_BYTES
    if positions != SHORTEST:
        return 0, 0
    bits = takes_bits(rows, sent)
    size = bitmap_bytes(rows)
    return jnp.where(bits, size, sent), jnp.where(bits, size, sent * INDEX_BYTES)


def wire_elements(message: PyTree) -> WireCost:
    """Counts the elements and bytes of one message of at most 4 GiB. Nothing else counts them.

    Args:
      message: the message of one client, without a client axis.
    """
    payload_elements = payload_bytes = metadata_elements = metadata_bytes = 0
    for leaf in leaves_of(message):
        if isinstance(leaf, Metadata):
            inner = wire_elements(leaf.value)
            metadata_elements += inner.payload_elements + inner.metadata_elements
            metadata_bytes += inner.bytes
            continue
        if isinstance(leaf, Masked):
            values, rows = leaf.values, jnp.sum(leaf.mask, dtype=jnp.uint32)
            elements = rows * (values.size // leaf.mask.size)
            named, named_bytes = position_cost(leaf.pattern, leaf.mask.size, rows)
            metadata_elements += named
            metadata_bytes += named_bytes
        else:
            values = jnp.asarray(leaf)
            elements = values.size
        payload_elements += elements
        payload_bytes += elements * values.dtype.itemsize
    return WireCost(
        payload_elements=payload_elements,
        payload_bytes=payload_bytes,
        metadata_elements=metadata_elements,
        metadata_bytes=metadata_bytes,
    )


# Transforms

# (key, message) -> message of the same structure
Transform = Callable[[Key[Array, ""], PyTree], PyTree]


@checked
def gaussian_noise(scale: NonNegative, coefficient: Share, only: str = "") -> Transform:
    """Makes the transform x (1 - coefficient) + N(0, scale^2) of every payload array.

    It is the noise of FedPCL's code (Tan et al., NeurIPS 2022). FedKTL's appendix D has 0.05, 0.2
    for prototypes and vectors, and 0.2, 0.2 for images, which cross the wire in [-1, 1].

    Args:
      scale, coefficient: standard deviation of the noise and share subtracted, FedPCL's s and p.
      only: the only field of the message that gets noise, such as "images"; "" for all fields.

    Returns:
      A transform; it raises ValueError for a message without the field `only`.

    Raises:
      ValueError: a number is out of its bounds.
    """

    def noisy(key, message):
        arrays = {}
        for place, leaf in payload_leaves(message).items():
            values = values_of(leaf)
            # Folding in the index makes a leaf's draw independent of the other leaves.
            leaf_key = jax.random.fold_in(key, place)
            noise = scale * jax.random.normal(leaf_key, values.shape, values.dtype)
            arrays[place] = values * (1 - coefficient) + noise
        return with_payload(message, arrays)

    def noisy_field(key, message):
        fields = getattr(message, "_fields", ())
        if only not in fields:
            names = ", ".join(fields) or "none"
            raise ValueError(f"gaussian_noise is for field {only!r}; the message has {names}")
        return message._replace(**{only: noisy(key, getattr(message, only))})

    return noisy_field if only else noisy


TRANSFORMS: dict[str, Callable[..., Transform]] = {"gaussian_noise": gaussian_noise}
"""Name in a config -> factory. Compression is not a transform but a code, see `core.codes`."""


def chain(transforms: tuple[Transform, ...]) -> Transform:
    """Composes transforms in order, each with its own key; an empty tuple is the identity."""

    def transform(key, message):
        for i, step in enumerate(transforms):
            message = step(jax.random.fold_in(key, i), message)
        return message

    return transform
