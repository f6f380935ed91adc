"""Defences of a server against bad clients: they change uploads before the method sees them.

Lengths, distances and their medians over a round are defined in `trust.geometry`. By name:

    norm_bound        No vector is longer than `bound` times the round's length, nor further from
                      the geometric median than `bound` times the round's distance (Sun et al.,
                      2019, with a relative bound).
    median            Every upload becomes the coordinate-wise median (Yin et al., ICML 2018).
    trimmed_mean      Every upload becomes the mean of each entry without a share of its largest
                      and smallest values (Yin et al., ICML 2018).
    geometric_median  Every upload becomes the geometric median (RFA, Pillutla et al., 2022).
    multi_krum        Drops the share of the vectors with the most distant neighbours (Blanchard et
                      al., NeurIPS 2017).

If all uploads become the same value, any weighted mean of them is that value. Each class of
prototypes or head rows is defended separately, a model as a whole. If a class has one or two
owners, `norm_bound` compares only lengths, because no rule can tell which of the two is right.
Counts of samples, which are clients' weights, are at most `Defence.most_weight` times the round's
median.

Before these steps, extreme uploads are rejected by default, see `outliers.without_outliers` and
`counts.without_miscounted`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated

import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import Positive, Within, checked
from fedjax_ht.core.context import Received
from fedjax_ht.core.method import Method, around
from fedjax_ht.core.reductions import sorted_rows, weighted_sum
from fedjax_ht.trust import geometry
from fedjax_ht.trust.counts import with_bounded_counts
from fedjax_ht.trust.options import Defence
from fedjax_ht.trust.vectors import Vectors, comparable, vectors_of

Minority = Annotated[float, Within(least=0, below=0.5)]


@checked
def norm_bound(bound: Positive = 2.0) -> Defence:
    """Makes a defence that clips vectors, see `geometry.clip_to_round`.

    Args:
      bound: the bound in units of the round's lengths, of its distances if entries are comparable,
        and of its sample counts, which are never bounded below their median.
    """

    def clip(vectors: Vectors, same_entries: bool) -> Vectors:
        return geometry.clip_to_round(vectors, bound, same_entries)

    return Defence("norm_bound", clip, by_entry=False, most_weight=max(bound, 1.0))


def _agreement(name: str, by_piece: Callable) -> Defence:
    """Makes a defence in which every upload becomes the same value.

    Args:
      name: the name of the defence.
      by_piece: (values float [P, V, D], known bool [P, V, D]) -> the value, float [V, D]. An entry
        is known if the client holds it and its vector is present.
    """

    def apply(vectors: Vectors, _: bool) -> Vectors:
        agreed = []
        for x, known in zip(vectors.values, geometry.known_entries(vectors)):
            agreed.append(jnp.broadcast_to(by_piece(x, known), x.shape))
        return vectors._replace(values=tuple(agreed))

    return Defence(name, apply)


@checked
def trimmed_mean(share: Minority = 0.2) -> Defence:
    """Makes the defence in which every entry becomes a trimmed mean over the clients that hold it.

    Args:
      share: share of values to drop at each end, rounded down.
    """

    def mean(x, known):
        ordered = sorted_rows(jnp.where(known, x, jnp.inf))
        count = known.sum(0)
        cut = jnp.floor(share * count + 1e-4).astype(jnp.int32)  # 0.42 * 150 is 62.99...
        place = jnp.arange(len(x)).reshape(-1, 1, 1)
        kept = (place >= cut) & (place < count - cut)
        # Divide before summing, since the sum of the kept values need not be finite.
        return weighted_sum(ordered, kept / jnp.maximum(count - 2 * cut, 1))

    return _agreement("trimmed_mean", mean)


def median() -> Defence:
    """Makes the defence in which every entry becomes its median over the clients that hold it."""
    return _agreement("median", geometry.median_of)


def geometric_median() -> Defence:
    """Makes the defence in which every vector becomes the geometric median over clients."""

    def apply(vectors: Vectors, _: bool) -> Vectors:
        agreed = zip(geometry.geometric_centre(vectors), vectors.values)
        values = tuple(jnp.broadcast_to(centre, x.shape) for centre, x in agreed)
        return vectors._replace(values=values)

    return Defence("geometric_median", apply)


@checked
def multi_krum(share: Minority = 0.2) -> Defence:
    """Makes a defence that drops f = ceil(share n) of n vectors.

    It drops those with the largest sum of squared distances to their n - f - 2 nearest neighbours,
    at least one neighbour (Blanchard et al., NeurIPS 2017).

    Args:
      share: share of vectors to drop, rounded up; at least one is kept.
    """

    def screen(vectors: Vectors, _: bool) -> Vectors:
        present = vectors.present
        # In units of the round's length, so that squares of huge vectors stay finite.
        unit = jnp.maximum(geometry.round_median(geometry.lengths(vectors), present), geometry.TINY)

        def squares_to(vector):
            distance = jnp.minimum(geometry.lengths(geometry.minus(vectors, *vector)) / unit, 1e15)
            return jnp.where(present, distance**2, jnp.inf)

        held = []
        for x, h in zip(vectors.values, vectors.held):
            held.append(jnp.broadcast_to(h, (len(x), *h.shape[1:])))
        squares = lax.map(squares_to, (vectors.values, tuple(held)))  # [P, P, V]
        itself = jnp.eye(len(present), dtype=bool)[..., None]
        nearest = jnp.sort(jnp.where(itself, jnp.inf, squares), axis=1)
        count = present.sum(0)
        # The margin is for rounding: 0.3 * 100 is above 30. One vector stays.
        left_out = jnp.minimum(jnp.ceil(share * count - 1e-4), count - 1).astype(jnp.int32)
        neighbours = jnp.minimum(jnp.maximum(count - left_out - 2, 1), count - 1)
        summed = jnp.arange(len(present)).reshape(1, -1, 1) < neighbours
        score = jnp.where(present, jnp.sum(jnp.where(summed, nearest, 0), axis=1), jnp.inf)
        rank = jnp.argsort(jnp.argsort(score, axis=0, stable=True), axis=0, stable=True)
        return vectors._replace(present=present & (rank < count - left_out))

    return Defence("multi_krum", screen)


DEFENCES: dict[str, Callable[..., Defence]] = {
    "norm_bound": norm_bound,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
    "multi_krum": multi_krum,
}
"""Name in a config -> factory."""


def defended(method: Method, defences: Sequence[Defence]) -> Method:
    """Applies defences, in order, before a method's server.

    Args:
      method: any method; with defences it reads single uplinks, even if its own server reads sums.
      defences: the defences in order; () returns the method itself.

    Returns:
      The method. Its `check` raises ValueError if a defence compares entries whose meaning differs
      between clients' uplinks.
    """
    return around(method, functools.partial(_defended, defences)) if defences else method


def _defended(defences: Sequence[Defence], method: Method) -> Method:
    same_entries = method.wire.positions != "own"

    def check(federation):
        method.check(federation)
        for defence in defences:
            if defence.by_entry and not same_entries:
                raise ValueError(
                    f"robust is {defence.name}, but an entry has a different meaning in each "
                    f"client's upload of {method.name}; use norm_bound"
                )

    def server_update(federation, server, received: dict[str, Received], ctx):
        safe = {}
        for part in comparable(received, method.wire.positions == "nested"):
            groups, put_back = vectors_of(part)
            for defence in defences:
                groups = [defence.apply(vectors, same_entries) for vectors in groups]
            safe |= put_back(groups)
        if method.wire.counts != "other":
            for defence in defences:
                safe = with_bounded_counts(safe, defence.most_weight)
        in_order = {name: safe[name] for name in received}
        return method.server_update(federation, server, in_order, ctx)

    wire = method.wire._replace(server_reads="uploads")
    return method._replace(check=check, server_update=server_update, wire=wire)
