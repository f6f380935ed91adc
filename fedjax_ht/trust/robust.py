"""Servers that outlive bad clients: what a round's uploads have in common, how far each is from it,
and defences.

A defence changes what a server receives before any method sees it. Lengths and distances are root
mean squares over the entries that are compared, and "the round's" means the median over all vectors
that arrived. By name:

    norm_bound        no vector is longer than `bound` times the round's length, nor further from
    the middle than
                      `bound` times the round's distance (Sun et al., 2019, with the bound relative)
    median            every client says the coordinate-wise median (Yin et al., ICML 2018)
    trimmed_mean      every client says the mean of each entry without a share of its largest and
    smallest (likewise) geometric_median  every client says the geometric median (RFA, Pillutla et
    al., 2022) multi_krum        a share of the vectors does not count, those with the most distant
    neighbours (Blanchard et al.,
                      NeurIPS 2017)

Where clients "all say" a value, any mean that a method takes of them is that value, whatever its
weights. Each class of prototypes or of head rows is defended for itself, a model as a whole. Counts
that clients state (`Metadata`) are believed. The middle is a geometric median; with one or two
owners of a class nobody can say who is right, and the length alone counts.

Before any of these, and by default, uploads beyond anything honest are refused, see
`without_outliers`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.bounds import Positive, Within, checked
from fedjax_ht.core.executor import each
from fedjax_ht.core.method import Method, Received, around
from fedjax_ht.core.uploads import Vectors, comparable, vectors_of, with_deviations


class Defence(NamedTuple):
    """What is done to what a server receives.

    Attributes:
      name: as in a config.
      apply: (Vectors, whether its entries can be compared between clients) -> Vectors.
      by_entry: whether it only works where they can.
    """

    name: str
    apply: Callable[[Vectors, bool], Vectors]
    by_entry: bool = True


Minority = Annotated[float, Within(least=0, below=0.5)]

WEISZFELD_STEPS = 8
EQUAL = 1e-6  # of a length: vectors that are closer are equal but for rounding
TINY = float(jnp.finfo(jnp.float32).tiny)
HUGE = float(jnp.finfo(jnp.float32).max)
FEWEST = 3  # uploads that have a median which one of them does not decide
LEAST = 1e-3  # of a median: below it most uploads are updates at rest, and any other is large
GIANT = 1e30  # beyond it sums of entries may overflow, and reciprocals need not be normal numbers


def largest(vectors: Vectors) -> jax.Array:
    """The largest entry held by magnitude, float32 [P, V]; 0 where nothing is."""
    found = jnp.zeros(vectors.present.shape)
    for x, held in zip(vectors.values, vectors.held):
        found = jnp.maximum(found, jnp.max(jnp.where(held, jnp.abs(x), 0), -1))
    return found


def lengths(vectors: Vectors) -> jax.Array:
    """Root mean square of the entries held, float32 [P, V]; 0 where nothing is. Squares of giants
    stay finite."""
    # whose reciprocal is a normal number
    scale = jnp.clip(largest(vectors), 1e-37, 1e37)[..., None]
    total = count = jnp.zeros(vectors.present.shape)
    for x, held in zip(vectors.values, vectors.held):
        total += jnp.sum(jnp.where(held, x / scale, 0) ** 2, -1)
        count += jnp.sum(jnp.broadcast_to(held, x.shape), -1)
    return scale[..., 0] * jnp.sqrt(total / jnp.maximum(count, 1))


def minus(
    vectors: Vectors, centre: Sequence[jax.Array], known: Sequence[jax.Array] | None = None
) -> Vectors:
    """The vectors from `centre`, pieces float [V, D], on; over the entries `known`, bool, where not
    all are."""
    held = vectors.held if known is None else tuple(h & k for h, k in zip(vectors.held, known))
    return vectors._replace(values=tuple(x - c for x, c in zip(vectors.values, centre)), held=held)


def middle(vectors: Vectors) -> tuple[jax.Array, ...]:
    """The geometric median of each vector over clients, pieces float [V, D]; by Weiszfeld's
    iteration from 0, smoothed as in RFA."""
    floor = EQUAL * of_the_round(lengths(vectors), vectors.present)

    def step(_, centre):
        far = lengths(minus(vectors, centre))
        weight = jnp.where(vectors.present, 1 / jnp.maximum(jnp.maximum(far, floor), TINY), 0)
        weight = weight / jnp.maximum(jnp.max(weight, 0), TINY)
        return tuple(
            _mean(x, jnp.where(h, weight[..., None], 0))
            for x, h in zip(vectors.values, vectors.held)
        )

    start = tuple(jnp.zeros(x.shape[1:], jnp.float32) for x in vectors.values)
    return lax.fori_loop(0, WEISZFELD_STEPS, step, start)


def _mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Over clients; 0 where the weight is."""
    return jnp.sum(x * weight, 0) / jnp.maximum(jnp.sum(weight, 0), TINY)


def of_the_round(x: jax.Array, present: jax.Array) -> jax.Array:
    """The median of those present, the lower one of two; 0 of none."""
    ordered = jnp.sort(jnp.where(present, x, jnp.inf).reshape(-1))
    count = present.sum()
    return jnp.where(count > 0, ordered[jnp.maximum(count - 1, 0) // 2], 0.0)


def in_units_of_the_round(
    found: Sequence[jax.Array], which: Sequence[jax.Array], least: jax.Array | float = 0.0
) -> tuple[list[jax.Array], jax.Array]:
    """Numbers [P, V] of several parts by the median of all that count (`which`), or `least` if that
    is more, 0 of the others; and the median."""
    unit = of_the_round(*(jnp.concatenate([x.reshape(-1) for x in xs]) for xs in (found, which)))
    scale = jnp.maximum(jnp.maximum(unit, least), TINY)
    return [jnp.where(there, x / scale, 0) for x, there in zip(found, which)], unit


def judged(
    parts: Sequence[Vectors], bound: float, positions: bool
) -> list[tuple[Vectors, jax.Array]]:
    """Vectors of one kind in parts that have their own middles: none longer, nor further from its
    middle, than `bound` times what the round has; and how far each was in these units before,
    float32 [P, V], 0 of who is not present. `positions` False leaves the middles out."""

    def within(far: jax.Array) -> jax.Array:
        # A giant may be infinitely far off, and with an infinite bound the quotient would be NaN.
        return jnp.minimum(1, bound / jnp.clip(far, TINY, HUGE))

    far, length = in_units_of_the_round([lengths(v) for v in parts], [v.present for v in parts])
    parts = [_scaled(v, within(f)) for v, f in zip(parts, far)]
    if positions:
        centres = [middle(v) for v in parts]
        apart = [minus(v, centre) for v, centre in zip(parts, centres)]
        several = [v.present & (v.present.sum(0) > 2) for v in parts]
        away, _ = in_units_of_the_round([lengths(v) for v in apart], several, EQUAL * length)
        near = [_scaled(v, within(f)) for v, f in zip(apart, away)]
        parts = [v._replace(values=tuple(map(jnp.add, c, v.values))) for v, c in zip(near, centres)]
        far = [jnp.maximum(f, a) for f, a in zip(far, away)]
    return list(zip(parts, far))


def _scaled(vectors: Vectors, by: jax.Array) -> Vectors:
    return vectors._replace(values=tuple(x * by[..., None] for x in vectors.values))


def _agreement(name: str, value: Callable[[Vectors], Sequence[jax.Array]]) -> Defence:
    """Every client says the value, pieces float [V, D]."""

    def apply(vectors: Vectors, _: bool) -> Vectors:
        agreed = zip(value(vectors), vectors.values)
        return vectors._replace(values=tuple(jnp.broadcast_to(own, x.shape) for own, x in agreed))

    return Defence(name, apply)


@checked
def norm_bound(bound: Positive = 2.0) -> Defence:
    """`judged`, of lengths alone where entries cannot be compared."""
    return Defence(
        "norm_bound",
        lambda vectors, positions: judged([vectors], bound, positions)[0][0],
        by_entry=False,
    )


@checked
def trimmed_mean(share: Minority = 0.2) -> Defence:
    """Every client says each entry's mean over who holds it, but for the `share` largest and
    smallest, rounded down."""

    def mean(x, held, present):
        there = jnp.broadcast_to(present[..., None] & held, x.shape)
        ordered = jnp.sort(jnp.where(there, x, jnp.inf), axis=0)
        count = there.sum(0)
        cut = jnp.floor(share * count).astype(jnp.int32)
        place = jnp.arange(len(x)).reshape(-1, 1, 1)
        kept = (place >= cut) & (place < count - cut)
        # Divided first, since the sum of what is kept need not be finite.
        return jnp.sum(jnp.where(kept, ordered / jnp.maximum(count - 2 * cut, 1), 0), 0)

    return _agreement(
        "trimmed_mean", lambda v: [mean(x, held, v.present) for x, held in zip(v.values, v.held)]
    )


def median() -> Defence:
    """Every client says each entry's median over who holds it; of an even number the mean of the
    two in the middle."""

    def of_entries(x, held, present):
        there = jnp.broadcast_to(present[..., None] & held, x.shape)
        ordered = jnp.sort(jnp.where(there, x, jnp.inf), axis=0)
        count = there.sum(0)[None]
        pair = [
            jnp.take_along_axis(ordered, jnp.maximum(n, 0) // 2, axis=0)[0]
            for n in (count - 1, count)
        ]
        return jnp.where(count[0] > 0, 0.5 * pair[0] + 0.5 * pair[1], 0)

    return _agreement(
        "median", lambda v: [of_entries(x, held, v.present) for x, held in zip(v.values, v.held)]
    )


def geometric_median() -> Defence:
    """Every client says the `middle`."""
    return _agreement("geometric_median", middle)


@checked
def multi_krum(share: Minority = 0.2) -> Defence:
    """Of n vectors f = ceil(share n) are left out, those with the largest sum of squared distances
    to their n - f - 2 nearest neighbours, at least one."""

    def screen(vectors: Vectors, _: bool) -> Vectors:
        present, own = vectors.present, lengths(vectors)
        # In units of the round's length, so that squares of giants stay finite.
        unit = jnp.maximum(of_the_round(own, present), TINY)

        def to_all(one):
            far = jnp.minimum(lengths(minus(vectors, *one)) / unit, 1e15)
            return jnp.where(present, far**2, jnp.inf)

        knowns = tuple(
            jnp.broadcast_to(h, (len(x), *h.shape[1:]))
            for x, h in zip(vectors.values, vectors.held)
        )
        squares = lax.map(to_all, (vectors.values, knowns))  # [P, P, V]
        itself = jnp.eye(len(present), dtype=bool)[..., None]
        nearest = jnp.sort(jnp.where(itself, jnp.inf, squares), axis=1)
        count = present.sum(0)
        left_out = jnp.ceil(share * count).astype(jnp.int32)
        neighbours = jnp.maximum(count - left_out - 2, 1)
        asked = jnp.arange(len(present)).reshape(1, -1, 1) < jnp.minimum(neighbours, count - 1)
        score = jnp.where(present, jnp.sum(jnp.where(asked, nearest, 0), axis=1), jnp.inf)
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
    """The method with defences, in order, before its server; the method itself without any.

    Its `check` raises a ValueError where a defence compares entries that mean other things in each
    client's uplink. A defence looks at single uplinks, whatever the method's server reads.
    """
    return around(method, functools.partial(_defended, defences)) if defences else method


def _defended(defences: Sequence[Defence], method: Method) -> Method:
    same_entries = method.wire.positions != "own"

    def check(federation):
        method.check(federation)
        if unfit := [d.name for d in defences if d.by_entry and not same_entries]:
            raise ValueError(
                f"robust is {unfit[0]}, but the same entry means another thing in each client's "
                "upload of "
                f"{method.name}; take norm_bound"
            )

    def server_update(federation, server, received: dict[str, Received], ctx):
        safe = {}
        for part in comparable(received, method.wire.positions == "nested"):
            groups, put_back = vectors_of(part)
            for defence in defences:
                groups = [defence.apply(vectors, same_entries) for vectors in groups]
            safe |= put_back(groups)
        return method.server_update(
            federation, server, {name: safe[name] for name in received}, ctx
        )

    return method._replace(
        check=check, server_update=server_update, wire=method.wire._replace(server_reads="uploads")
    )


class Summary(NamedTuple):
    """What is looked at of the vectors of one kind, to tell which uploads are outliers.

    Attributes:
      peaks: float32 [P, V], the largest entry held by magnitude; 0 where nothing is.
      sample: their `sampled` entries.
    """

    peaks: jax.Array
    sample: Vectors


def summaries(received: dict[str, Received]) -> list[tuple[dict[str, Received], list[Summary]]]:
    """Summarises a round's uploads in one read of them, one client after another on CPU: each part
    that `comparable` makes, and the summaries of its kinds of vectors. Running variances count by
    their square roots."""
    found = []
    for part in comparable(with_deviations(received), nested=False):
        clients = sum(len(r.arrived) for r in part.values())

        def one(client: Received, clients=clients) -> list[Summary]:
            alone = jax.tree.map(lambda x: x[None], client)
            groups, _ = vectors_of({"": alone})
            kinds = [Summary(largest(v), sampled(v, clients)) for v in groups]
            return jax.tree.map(lambda x: x[0], kinds)

        kinds = [each(one, r._replace(info=())) for r in part.values()]
        found.append((part, jax.tree.map(lambda *xs: jnp.concatenate(xs), *kinds)))
    return found


def far_off(
    method: Method, num_clients: int, summarised: list[tuple[dict[str, Received], list[Summary]]]
) -> jax.Array:
    """How far each client's upload is from the round's, float32 [num_clients]: its worst vector's
    length in the round's lengths, distance from the middle in the round's distances, or largest
    entry in the round's largest entries, whichever is most; 0 of who did not arrive. Lengths and
    distances of long vectors are those of a sample of entries. Running variances count by their
    square roots.
    """
    far = jnp.zeros(num_clients)
    for kinds in zip(*(own for _, own in summarised)):
        peaks = [kind.peaks for kind in kinds]
        shrunk = against_overflow(peaks)
        samples = [_scaled(k.sample, jnp.broadcast_to(shrunk, k.peaks.shape)) for k in kinds]
        found = judged(samples, jnp.inf, method.wire.positions != "own")
        present = [sample.present for sample in samples]
        peaks, _ = in_units_of_the_round([shrunk * peak for peak in peaks], present)
        for (part, _), (_, worst), peak in zip(summarised, found, peaks):
            ids = _arrived_ids(part, num_clients)
            far = far.at[ids].max(jnp.max(jnp.maximum(worst, peak), axis=1), mode="drop")
    return jnp.minimum(far, 1e30)


def without_outliers(
    num_clients: int,
    received: dict[str, Received],
    summarised: list[tuple[dict[str, Received], list[Summary]]],
    times: float,
) -> tuple[dict[str, Received], jax.Array]:
    """Refuses uploads that are beyond anything honest.

    Args:
      num_clients: of the federation.
      received: bucket name -> uplinks.
      summarised: their `summaries`.
      times: an upload is refused if its largest entry, or the length of its longest vector, is
        more than so many times the median of the round's uploads; 0 refuses none. Where fewer than
        `FEWEST` uploads hold vectors of a kind, or their median is below `LEAST`, nobody is refused
        by that kind. Running variances count by their square roots.

    Returns:
      The uplinks, of which those refused have not arrived; and bool [num_clients], whose they are.
    """
    refused = jnp.zeros(num_clients, bool)
    if not times:
        return received, refused
    for kinds in zip(*(own for _, own in summarised)):
        sent = [kind.sample.present.any(1) for kind in kinds]
        for sizes in ([kind.peaks for kind in kinds], [lengths(kind.sample) for kind in kinds]):
            # An upload as a whole: single rows, such as a rare class's prototype, differ honestly.
            sizes = [jnp.max(size, axis=1) for size in sizes]
            usual = of_the_round(jnp.concatenate(sizes), jnp.concatenate(sent))
            certain = (jnp.concatenate(sent).sum() >= FEWEST) & (usual >= LEAST)
            for (part, _), size in zip(summarised, sizes):
                outlying = certain & (size > times * usual)
                refused = refused.at[_arrived_ids(part, num_clients)].max(outlying, mode="drop")
    kept = {}
    for name, r in received.items():
        kept[name] = r._replace(arrived=r.arrived & ~refused[r.info.id])
    return kept, refused


def _arrived_ids(part: dict[str, Received], absent: int) -> jax.Array:
    """The clients of the rows of buckets' vectors, int32 [P]; `absent` where nothing arrived."""
    return jnp.concatenate([jnp.where(r.arrived, r.info.id, absent) for r in part.values()])


def against_overflow(peaks: Sequence[jax.Array]) -> jax.Array:
    """A factor for all vectors of one kind, whose largest entries are `peaks`, float32 [P, V] a
    part: 1, or 2^-40 where there is a giant. A power of two leaves ratios as they are."""
    highest = jnp.max(jnp.stack([jnp.max(peak) for peak in peaks]))
    return jnp.where(highest > GIANT, 2.0**-40, 1.0)


def sampled(vectors: Vectors, clients: int, numbers: int = 2**18) -> Vectors:
    """Every k-th entry of each piece as one piece, so that about `numbers` are left of all
    `clients` together."""
    rows = vectors.present.shape[1]
    step = -(-clients * rows * sum(x.shape[-1] for x in vectors.values) // numbers)
    values = [x[..., ::step] for x in vectors.values]
    held = [jnp.broadcast_to(h, x.shape)[..., ::step] for h, x in zip(vectors.held, vectors.values)]
    return Vectors((jnp.concatenate(values, -1),), (jnp.concatenate(held, -1),), vectors.present)
