"""What crosses the wire, and what it costs.

`broadcast` returns the downlink and `client_update` the uplink; every count, and every transform
(noise, quantisation), works on these two pytrees. Plain leaves are sent whole. Two wrappers say
more:

* `Masked(values, mask)`: only entries whose mask is True are sent, each with its index.
* `Metadata(value)`: counts and the like, tallied apart from the payload.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import NonNegative, Share, checked
from fedjax_ht.core.method import PyTree

INDEX_BYTES = 4  # an entry of a Masked leaf travels with an int32 index

Late = Literal["lost", "arrives"]
"""What becomes of an upload that comes after its round's deadline: nothing, or it counts in a later
round."""


class Masked(NamedTuple):
    """values [*m, *rest] of which the rows with mask bool [*m] True are sent; the others are never
    read."""

    values: jax.Array
    mask: jax.Array


class Metadata(NamedTuple):
    """What is sent but is not payload, such as sample counts: an array or a Masked."""

    value: jax.Array | Masked


class WireCost(NamedTuple):
    """Elements and bytes of one message; ints, or int32 scalars where a mask decides."""

    payload_elements: jax.Array | int
    payload_bytes: jax.Array | int
    metadata_elements: jax.Array | int
    metadata_bytes: jax.Array | int

    @property
    def bytes(self) -> jax.Array | int:
        """Payload and metadata."""
        return self.payload_bytes + self.metadata_bytes


def _is_leaf(x) -> bool:
    return isinstance(x, Masked | Metadata)


def sent(message: PyTree) -> PyTree:
    """Sets to zero what the masks of a message, or of any pytree, do not send: nobody reads it."""

    def shown(leaf):
        if not isinstance(leaf, Masked):
            return leaf
        rows = leaf.mask.reshape(leaf.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))
        return Masked(jnp.where(rows, leaf.values, 0), leaf.mask)

    return jax.tree.map(shown, message, is_leaf=lambda x: isinstance(x, Masked))


def wire_elements(message: PyTree) -> WireCost:
    """Counts one message (no client axis). The one place where elements and bytes are counted."""
    cost = [0, 0, 0, 0]
    for leaf in jax.tree.leaves(message, is_leaf=_is_leaf):
        if isinstance(leaf, Masked):
            entries = jnp.sum(leaf.mask, dtype=jnp.int32)
            elements = entries * (leaf.values.size // leaf.mask.size)
            cost[0], cost[1] = cost[0] + elements, cost[1] + elements * leaf.values.dtype.itemsize
            cost[2], cost[3] = cost[2] + entries, cost[3] + entries * INDEX_BYTES
        elif isinstance(leaf, Metadata):
            inner = wire_elements(leaf.value)
            cost[2] = cost[2] + inner.payload_elements + inner.metadata_elements
            cost[3] = cost[3] + inner.payload_bytes + inner.metadata_bytes
        else:
            leaf = jnp.asarray(leaf)
            cost[0], cost[1] = cost[0] + leaf.size, cost[1] + leaf.size * leaf.dtype.itemsize
    return WireCost(*cost)


# (key, message) -> message of the same structure
Transform = Callable[[jax.Array, PyTree], PyTree]


@checked
def gaussian_noise(scale: NonNegative, coefficient: Share, only: str = "") -> Transform:
    """x (1 - coefficient) + N(0, scale^2) for every float leaf of the payload: the noise of
    FedPCL's code (Tan et al., NeurIPS 2022), which FedKTL's appendix D takes with 0.05 and 0.2 for
    prototypes and vectors, with 0.2 and 0.2 for images. FedKTL's images cross the wire in [-1, 1],
    and its vectors in units, so that these numbers fit.

    Args:
      scale, coefficient: s and p.
      only: a field of the message, such as "images"; "" is all of them. A message without it is a
        ValueError.

    Raises:
      ValueError: a number out of its bounds.
    """

    def transform(key, message):
        leaves, structure = jax.tree.flatten(message, is_leaf=_is_leaf)

        def noisy(leaf, key):
            if isinstance(leaf, Metadata):
                return leaf
            if isinstance(leaf, Masked):
                return Masked(noisy(leaf.values, key), leaf.mask)
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            return leaf * (1 - coefficient) + scale * jax.random.normal(key, leaf.shape, leaf.dtype)

        keys = [jax.random.fold_in(key, i) for i in range(len(leaves))]
        return jax.tree.unflatten(structure, [noisy(leaf, k) for leaf, k in zip(leaves, keys)])

    def in_one_field(key, message):
        fields = getattr(message, "_fields", ())
        if only not in fields:
            raise ValueError(
                f"gaussian_noise is for field {only!r}; the message has "
                f"{', '.join(fields) or 'none'}"
            )
        return message._replace(**{only: transform(key, getattr(message, only))})

    return in_one_field if only else transform


TRANSFORMS: dict[str, Callable[..., Transform]] = {"gaussian_noise": gaussian_noise}
"""Name in a config -> factory. A quantiser is one more entry: (key, message) -> message."""


def chain(transforms: tuple[Transform, ...]) -> Transform:
    """Applies transforms in order, each with its own key; an empty tuple is the identity."""

    def transform(key, message):
        for i, step in enumerate(transforms):
            message = step(jax.random.fold_in(key, i), message)
        return message

    return transform
