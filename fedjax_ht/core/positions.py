"""Positions of the rows that a `Masked` sends: their coding, and its cost."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from fedjax_ht.core.trees import Array, HostNumber

INDEX_BYTES = 4  # an int32 index


@jax.tree_util.register_static  # no leaf of a message, but part of its structure
@dataclasses.dataclass(frozen=True)
class Shortest:
    """Positions travel as an index with each sent row, or as a bit for each row, whichever is
    shorter; without it, or a pattern, always as indices."""


SHORTEST = Shortest()
"""For masks with many rows, such as one for each entry of a model."""


def bitmap_bytes(rows: int) -> int:
    """Computes the bytes of a bit for each of so many rows."""
    return (rows + 7) // 8


def takes_bits(rows: int, sent: Int[HostNumber, ""] | int) -> Bool[HostNumber, ""] | bool:
    """Returns whether bits are shorter than indices, of `sent` rows out of `rows`."""
    return bitmap_bytes(rows) < INDEX_BYTES * sent


def position_cost(
    positions: Any, rows: int, sent: Int[Array, ""] | int
) -> tuple[Int[Array, ""] | int, Int[Array, ""] | int]:
    """Counts the elements and bytes that say which rows are sent.

    Args:
      positions: `Masked.pattern`: None for indices, `SHORTEST`, or a pattern, which costs nothing.
      rows: number of rows of the mask.
      sent: number of rows that are sent, an int32 scalar.

    Returns:
      The number of indices, or of the bytes of bits; and their bytes.
    """
    if positions is None:
        return sent, sent * INDEX_BYTES
    if positions != SHORTEST:
        return 0, 0
    bits = takes_bits(rows, sent)
    size = bitmap_bytes(rows)
    return jnp.where(bits, size, sent), jnp.where(bits, size, sent * INDEX_BYTES)
