"""Outliers among a round's uploads, by size: large ones are reported, extreme ones rejected.

This is on by default, unlike `trust.defences`. The size of an upload is its largest entry or the
root mean square of its entries, whichever is the larger multiple of the round's median. Plain
arrays of an upload, such as a model, have one size, and `Masked` ones, such as prototypes, another.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_ht.core import wire
from fedjax_ht.core.context import Received
from fedjax_ht.core.trees import PyTree
from fedjax_ht.trust.geometry import round_median

FEWEST = 3  # minimum number of uploads, so that no single one decides the median
LEAST = 1e-3  # minimum median: below it most updates are near zero, so that any other looks large
MOST = 1e30  # the largest ratio


def size_ratios(num_clients: int, received: dict[str, Received]) -> jax.Array:
    """Computes the ratio of each client's upload size to the round's median.

    Ratios of honest clients are in benchmarks/results/honest_uploads.csv.

    Args:
      num_clients: the number of clients in the federation.
      received: bucket name -> uplinks.

    Returns:
      float32 [num_clients], at most `MOST`; 0 for a client whose upload did not arrive or cannot be
      compared: fewer than `FEWEST` uploads hold entries, or their median is below `LEAST`.
    """
    ids = jnp.concatenate([r.info.id for r in received.values()])
    arrived = jnp.concatenate([r.arrived for r in received.values()])
    of_buckets = [_sizes(r.uplink, len(r.arrived)) for r in received.values()]
    sizes, holds = (jnp.concatenate(x, axis=1) for x in zip(*of_buckets))
    counted = holds & arrived
    usual = jax.vmap(round_median)(sizes, counted)[:, None]
    certain = (counted.sum(1, keepdims=True) >= FEWEST) & (usual >= LEAST) & jnp.isfinite(usual)
    # Uploads that did not arrive may be NaN.
    times = jnp.where(certain & counted, sizes / jnp.maximum(usual, LEAST), 0)
    largest = jnp.minimum(times.max(0, initial=0), MOST)
    return jnp.zeros(num_clients).at[ids].max(largest)


def _sizes(uplink: PyTree, clients: int) -> tuple[jax.Array, jax.Array]:
    """Returns the sizes of a bucket's uplinks, and which of them have any entries.

    The sizes are float32 [2 K, clients] for K kinds of arrays: largest entries, then root mean
    squares. The second is bool [2 K, clients].
    """
    kinds: dict[bool, list] = {}  # whether masked -> largest entry, sum of squares, entries
    for path, leaf in jax.tree_util.tree_leaves_with_path(uplink, is_leaf=wire.is_leaf):
        if not wire.is_payload(leaf):
            continue
        x = jnp.abs(wire.values_of(leaf).astype(jnp.float32))
        if _is_variance(path):
            x = jnp.sqrt(x)
        axes, masked = tuple(range(1, x.ndim)), wire.is_masked(leaf)
        count = jnp.full(clients, math.prod(x.shape[1:]))
        if masked:
            held = jnp.broadcast_to(wire.sent_rows(leaf), x.shape)
            x, count = jnp.where(held, x, 0), held.sum(axes)
        sums = [x.max(axes, initial=0), jnp.square(x).sum(axes), count]
        if masked in kinds:
            peak, square, entries = kinds[masked]
            sums = [jnp.maximum(peak, sums[0]), square + sums[1], entries + count]
        kinds[masked] = sums
    if not kinds:
        return jnp.zeros((0, clients)), jnp.zeros((0, clients), bool)
    peaks, squares, counts = map(jnp.stack, zip(*(kinds[k] for k in sorted(kinds))))
    lengths = jnp.sqrt(squares / jnp.maximum(counts, 1))
    return jnp.concatenate([peaks, lengths]), jnp.concatenate([counts > 0, counts > 0])


def _is_variance(path: tuple) -> bool:
    """Returns True for running variances, "var" below "stats".

    Their size is that of their square roots: if a client's inputs are s times another's, its
    variances are s^2 times as large.
    """
    names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    return "stats" in names and names[-1] == "var"


def without_outliers(
    received: dict[str, Received], ratios: jax.Array, times: float
) -> tuple[dict[str, Received], jax.Array]:
    """Rejects uploads that are too large to be honest.

    Args:
      received: bucket name -> uplinks.
      ratios: the `size_ratios` of the uplinks.
      times: the largest accepted ratio; 0 rejects none.

    Returns:
      The uplinks, with rejected ones marked as not arrived; and bool [num_clients], the clients
      whose uploads are rejected.
    """
    if not times:
        return received, jnp.zeros(ratios.shape, bool)
    refused = ratios > times
    kept = {}
    for name, r in received.items():
        kept[name] = r._replace(arrived=r.arrived & ~refused[r.info.id])
    return kept, refused
