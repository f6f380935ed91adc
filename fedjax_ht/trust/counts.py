"""False counts in uploads: rejected uploads, and bounds on a client's weight.

Clients report the counts, and a negative count can turn a mean into any multiple of it. For every
method, the server therefore ignores uploads whose counts are negative, not finite, or exceed the
client's samples (`ClientInfo.num_samples`, which a deployment's server knows before the first
round). Defences also limit a client's counts to a multiple of the round's median.
"""

import jax
import jax.numpy as jnp

from fedjax_ht.core.context import Received
from fedjax_ht.core.counts import counts_fit, counts_of, with_scaled_counts
from fedjax_ht.core.method import Method
from fedjax_ht.trust.geometry import TINY, round_median


def without_miscounted(
    method: Method, num_clients: int, received: dict[str, Received]
) -> tuple[dict[str, Received], jax.Array]:
    """Rejects uploads whose counts do not fit their clients' samples.

    Args:
      method: the method, whose `Wire.counts` says what uploads count.
      num_clients: number of clients in the federation.
      received: bucket name -> uplinks.

    Returns:
      The uplinks, with rejected ones marked as not arrived; and bool [num_clients], the clients
      whose uploads are rejected.
    """
    kept, refused = {}, jnp.zeros(num_clients, bool)
    for name, r in received.items():
        fits = counts_fit(method, r, name)
        ids = jnp.where(r.arrived & ~fits, r.info.id, num_clients)
        refused = refused.at[ids].set(True, mode="drop")
        kept[name] = r._replace(arrived=r.arrived & fits)
    return kept, refused


def with_bounded_counts(received: dict[str, Received], bound: float) -> dict[str, Received]:
    """Limits each client's counts to `bound` times the round's median, by scaling them down.

    Args:
      received: bucket name -> uplinks, whose counts are at least 0.
      bound: the limit, in units of the median over clients with positive counts.
    """
    weights = {}
    for name, r in received.items():
        totals = [
            x.astype(jnp.float32).reshape(len(r.arrived), -1).sum(1) for x in counts_of(r.uplink)
        ]
        if totals:
            weights[name] = jnp.where(r.arrived, jnp.max(jnp.stack(totals), 0), 0)
    if not weights:
        return received
    joined = jnp.concatenate(list(weights.values()))
    most = bound * round_median(joined, joined > 0)
    bounded = dict(received)
    for name, weight in weights.items():
        factor = jnp.where(weight > most, most / jnp.maximum(weight, TINY), 1)
        uplink = with_scaled_counts(received[name].uplink, factor)
        bounded[name] = received[name]._replace(uplink=uplink)
    return bounded
