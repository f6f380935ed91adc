"""Lengths, distances and geometric medians of vectors, relative to those of a round.

Lengths and distances are root mean squares over the compared entries. A round's length or distance
is the median over all arrived vectors. All results stay finite for entries up to the largest
float32.
"""

import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.reductions import sorted_rows, weighted_sum
from fedjax_ht.trust.vectors import Vectors

WEISZFELD_STEPS = 8
EQUAL = 1e-6  # times a length: closer vectors are equal except for rounding
TINY = float(jnp.finfo(jnp.float32).tiny)


def largest(vectors: Vectors) -> jax.Array:
    """Returns the largest magnitude of held entries, float32 [P, V]; 0 without any."""
    peaks = jnp.zeros(vectors.present.shape)
    for x, held in zip(vectors.values, vectors.held):
        peaks = jnp.maximum(peaks, jnp.max(jnp.where(held, jnp.abs(x), 0), -1))
    return peaks


def lengths(vectors: Vectors) -> jax.Array:
    """Returns the root mean square of held entries, float32 [P, V]; 0 without any."""
    # Entries are divided by the largest one, so that squares do not overflow. Within these bounds
    # the scale's reciprocal is a normal number.
    scale = jnp.clip(largest(vectors), 1e-37, 1e37)[..., None]
    total = count = jnp.zeros(vectors.present.shape)
    for x, held in zip(vectors.values, vectors.held):
        total += jnp.sum(jnp.where(held, x / scale, 0) ** 2, -1)
        count += jnp.sum(jnp.broadcast_to(held, x.shape), -1)
    return scale[..., 0] * jnp.sqrt(total / jnp.maximum(count, 1))


def minus(
    vectors: Vectors, centre: Sequence[jax.Array], known: Sequence[jax.Array] | None = None
) -> Vectors:
    """Subtracts a centre from all vectors.

    Args:
      vectors: the vectors of P clients.
      centre: the centre, a float [V, D] per piece.
      known: the entries that the centre has, a bool array per piece; None if it has all.

    Returns:
      The differences; no client holds an entry that the centre lacks.
    """
    held = vectors.held
    if known is not None:
        held = tuple(map(operator.and_, held, known))
    values = tuple(map(operator.sub, vectors.values, centre))
    return vectors._replace(values=values, held=held)


def scaled(vectors: Vectors, factor: jax.Array) -> Vectors:
    """Multiplies each vector by its factor, float [P, V]."""
    return vectors._replace(values=tuple(x * factor[..., None] for x in vectors.values))


def geometric_centre(vectors: Vectors) -> tuple[jax.Array, ...]:
    """Computes the geometric median over clients of each of the V vectors.

    It uses Weiszfeld's iteration, smoothed as in RFA (Pillutla et al., 2022). It starts from the
    median of each entry: a start that equals some vectors would stay there, as 0 does where clients
    upload zeros.

    Returns:
      A float [V, D] per piece; an entry that no client holds is 0.
    """
    floor = EQUAL * round_median(lengths(vectors), vectors.present)

    def step(_, centre):
        distance = lengths(minus(vectors, centre))
        # The floor bounds the weight of a vector that the centre has reached.
        weight = 1 / jnp.maximum(jnp.maximum(distance, floor), TINY)
        weight = jnp.where(vectors.present, weight, 0)
        weight = weight / jnp.maximum(jnp.max(weight, 0), TINY)
        pieces = []
        for x, held in zip(vectors.values, vectors.held):
            shares = jnp.where(held, weight[..., None], 0)
            total = weighted_sum(shares, jnp.ones(len(shares)))
            pieces.append(weighted_sum(x, shares) / jnp.maximum(total, TINY))
        return tuple(pieces)

    start = tuple(median_of(x, known) for x, known in zip(vectors.values, known_entries(vectors)))
    return lax.fori_loop(0, WEISZFELD_STEPS, step, start)


def known_entries(vectors: Vectors) -> tuple[jax.Array, ...]:
    """Returns the entries that clients hold in vectors that arrived, a bool [P, V, D] per piece."""
    known = []
    for x, held in zip(vectors.values, vectors.held):
        known.append(jnp.broadcast_to(vectors.present[..., None] & held, x.shape))
    return tuple(known)


def median_of(x: jax.Array, known: jax.Array) -> jax.Array:
    """Returns the median of each entry over the clients that know it; 0 without any.

    For an even number of values it is the mean of the middle two.

    Args:
      x, known: float and bool [P, V, D].

    Returns:
      float32 [V, D].
    """
    ordered = sorted_rows(jnp.where(known, x, jnp.inf))
    count = known.sum(0)[None]

    def at(place):
        return jnp.take_along_axis(ordered, jnp.maximum(place, 0) // 2, axis=0)[0]

    return jnp.where(count[0] > 0, 0.5 * at(count - 1) + 0.5 * at(count), 0)


def round_median(x: jax.Array, counted: jax.Array) -> jax.Array:
    """Returns the (lower) median of the counted numbers; 0 without any.

    Args:
      x, counted: float and bool, of the same shape.
    """
    ordered = jnp.sort(jnp.where(counted, x, jnp.inf).reshape(-1))
    count = counted.sum()
    return jnp.where(count > 0, ordered[jnp.maximum(count - 1, 0) // 2], 0.0)


def clip_to_round(vectors: Vectors, bound: float, same_entries: bool) -> Vectors:
    """Clips vectors to `bound` times the round's length and distance.

    First, vectors longer than `bound` times the round's length are scaled down to it. Then vectors
    further from the geometric median than `bound` times the round's distance are moved towards it.

    Args:
      vectors: the vectors of P clients.
      bound: the largest length and distance, in units of the round's.
      same_entries: False skips distances, since the meaning of entries differs between vectors.
    """

    def factor(sizes: jax.Array, counted: jax.Array, unit: jax.Array) -> jax.Array:
        ratio = jnp.where(counted, sizes / jnp.maximum(unit, TINY), 0)
        return jnp.minimum(1, bound / jnp.maximum(ratio, TINY))

    present, sizes = vectors.present, lengths(vectors)
    length = round_median(sizes, present)
    vectors = scaled(vectors, factor(sizes, present, length))
    if not same_entries:
        return vectors
    centre = geometric_centre(vectors)
    offset = minus(vectors, centre)
    # With one or two owners of a class, no rule can tell which is right.
    several = present & (present.sum(0) > 2)
    distances = lengths(offset)
    distance = jnp.maximum(round_median(distances, several), EQUAL * length)
    near = scaled(offset, factor(distances, several, distance))
    values = tuple(map(jnp.add, centre, near.values))
    return near._replace(values=values)  # `minus` did not change `held`
