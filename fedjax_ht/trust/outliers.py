"""Outliers among a round's uploads: scores of all, and the refusal of those beyond any doubt.

Both are always on; `trust.defences` are options. Running variances count by their square roots (see
`vectors.with_deviations`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.context import Received
from fedjax_ht.core.executor import each
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import join_trees
from fedjax_ht.trust import geometry
from fedjax_ht.trust.vectors import Vectors, comparable, vectors_of, with_deviations

FEWEST = 3  # uploads that have a median which no single one of them decides
LEAST = 1e-3  # of a median: below it most uploads are updates at rest, and any other is large
ABSENT = 2**31 - 1  # no client's id: a scatter drops what is out of bounds
GIANT = 1e30  # beyond it sums of entries may overflow, and reciprocals need not be normal numbers
MOST = 1e30  # the largest score


class Summary(NamedTuple):
    """Numbers of the vectors of one kind by which outliers are told.

    Attributes:
      peaks: float32 [P, V], the largest magnitude of the entries held; 0 where none is.
      sample: a sample of the vectors' entries, see `sampled`.
    """

    peaks: jax.Array
    sample: Vectors


class SummarisedPart(NamedTuple):
    """Buckets whose uplinks can be compared.

    Attributes:
      ids: int32 [P], the client of each row of the buckets; `ABSENT` where nothing arrived.
      kinds: a summary of each group of vectors, as `vectors.vectors_of` orders them.
    """

    ids: jax.Array
    kinds: list[Summary]


def summaries(received: dict[str, Received]) -> list[SummarisedPart]:
    """Summarises a round's uploads in one read of them, one client after another on CPU.

    Args:
      received: bucket name -> uplinks.

    Returns:
      The parts that `vectors.comparable` makes.
    """
    parts = []
    for part in comparable(with_deviations(received), nested=False):
        ids = [jnp.where(r.arrived, r.info.id, ABSENT) for r in part.values()]
        summarise = functools.partial(_summarise_client, sum(map(len, ids)))
        kinds = [each(summarise, r._replace(info=())) for r in part.values()]
        parts.append(SummarisedPart(*join_trees(jnp.concatenate, list(zip(ids, kinds)))))
    return parts


def _summarise_client(clients: int, client: Received) -> list[Summary]:
    """Summarises one client's upload; `client` has no axis of clients."""
    groups, _ = vectors_of({"": jax.tree.map(lambda x: x[None], client)})
    kinds = [Summary(geometry.largest(vectors), sampled(vectors, clients)) for vectors in groups]
    return jax.tree.map(lambda x: x[0], kinds)


def outlier_scores(method: Method, num_clients: int, summarised: list[SummarisedPart]) -> jax.Array:
    """Scores how far each client's upload is from the round's.

    A vector's score is the largest of three ratios: of its length to the round's length, of its
    distance from the geometric median to the round's distance, and of its largest entry to the
    round's largest entries. Lengths and distances of long vectors are those of a sample of entries.

    Args:
      method: the method; `Wire.positions` "own" leaves distances out.
      num_clients: number of clients of the federation.
      summarised: the round's uploads.

    Returns:
      float32 [num_clients], the score of a client's worst vector, at most `MOST`; 0 for a client
      whose upload did not arrive.
    """
    same_entries = method.wire.positions != "own"
    scores = jnp.zeros(num_clients)
    for kinds in zip(*(part.kinds for part in summarised)):
        # A power of two leaves ratios as they are.
        highest = jnp.max(jnp.stack([jnp.max(kind.peaks) for kind in kinds]))
        shrink = jnp.where(highest > GIANT, 2.0**-40, 1.0)
        samples, peaks, present = [], [], []
        for kind in kinds:
            samples.append(geometry.scaled(kind.sample, jnp.broadcast_to(shrink, kind.peaks.shape)))
            peaks.append(shrink * kind.peaks)
            present.append(kind.sample.present)
        clipped = geometry.clip_to_round(samples, jnp.inf, same_entries)
        peak_ratios, _ = geometry.relative_to_round(peaks, present)
        for part, (_, ratio), peak in zip(summarised, clipped, peak_ratios):
            worst = jnp.max(jnp.maximum(ratio, peak), axis=1)
            scores = scores.at[part.ids].max(worst, mode="drop")
    return jnp.minimum(scores, MOST)


def without_outliers(
    num_clients: int,
    received: dict[str, Received],
    summarised: list[SummarisedPart],
    times: float,
) -> tuple[dict[str, Received], jax.Array]:
    """Refuses uploads that are beyond anything honest.

    Args:
      num_clients: number of clients of the federation.
      received: bucket name -> uplinks.
      summarised: the `summaries` of the uplinks.
      times: the most that an upload's largest entry, or the length of its longest vector, may be,
        in medians of the round's uploads; 0 refuses none. Where fewer than `FEWEST` uploads hold
        vectors of a kind, or their median is below `LEAST`, no upload is refused by that kind.

    Returns:
      The uplinks, of which those refused have not arrived; and bool [num_clients], the clients
      whose uploads are refused.
    """
    if not times:
        return received, jnp.zeros(num_clients, bool)
    refused = size_ratios(num_clients, summarised) > times
    kept = {}
    for name, r in received.items():
        kept[name] = r._replace(arrived=r.arrived & ~refused[r.info.id])
    return kept, refused


def size_ratios(num_clients: int, summarised: list[SummarisedPart]) -> jax.Array:
    """Computes how many times the round's median the size of each client's upload is.

    The size is the largest entry, or the length of the longest vector, whichever has the larger
    ratio. Ratios of honest clients are in benchmarks/results/honest_uploads.csv.

    Args:
      num_clients: the number of clients in the federation.
      summarised: the round's uploads.

    Returns:
      float32 [num_clients], 0 for a client whose upload did not arrive or cannot be compared.
    """
    ratios = jnp.zeros(num_clients)
    for kinds in zip(*(part.kinds for part in summarised)):
        # The largest of an upload as a whole: single rows, such as a rare class's prototype, differ
        # honestly.
        holds, peaks, longest = [], [], []
        for kind in kinds:
            holds.append(kind.sample.present.any(1))
            peaks.append(jnp.max(kind.peaks, axis=1))
            longest.append(jnp.max(geometry.lengths(kind.sample), axis=1))
        all_holds = jnp.concatenate(holds)
        for sizes in (peaks, longest):
            usual = geometry.round_median(jnp.concatenate(sizes), all_holds)
            certain = (all_holds.sum() >= FEWEST) & (usual >= LEAST)
            for part, size in zip(summarised, sizes):
                ratio = jnp.where(certain, size / jnp.maximum(usual, LEAST), 0.0)
                ratios = ratios.at[part.ids].max(ratio, mode="drop")
    return ratios


def sampled(vectors: Vectors, clients: int, numbers: int = 2**18) -> Vectors:
    """Takes every k-th entry of each piece, as one piece.

    Args:
      vectors: the vectors of one client or several.
      clients: the round's number of clients that have such vectors.
      numbers: number of entries, about, that are left of all clients together.
    """
    rows = vectors.present.shape[1]
    entries = sum(x.shape[-1] for x in vectors.values)
    step = -(-clients * rows * entries // numbers)  # rounded up
    values, held = [], []
    for x, h in zip(vectors.values, vectors.held):
        values.append(x[..., ::step])
        held.append(jnp.broadcast_to(h, x.shape)[..., ::step])
    return Vectors((jnp.concatenate(values, -1),), (jnp.concatenate(held, -1),), vectors.present)
