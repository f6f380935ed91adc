"""Uploads of two buckets, of every kind that is compared."""

import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.wire import Masked, Metadata


def received(uplink, arrived, first: int = 0) -> Received:
    n = len(arrived)
    ids = jnp.asarray(np.arange(first, first + n, dtype=np.int32))
    ones = jnp.asarray(np.ones(n, np.int32))
    return Received(uplink, ClientInfo(ids, ones, ids), jnp.asarray(np.array(arrived)))


def buckets(widths=(3, 3), rows=4):
    """Two buckets of three and two clients that send a model, rows, entries, and a count."""

    def bucket(n, width, seed):
        rng = np.random.default_rng(seed)

        def normal(*shape):
            return jnp.asarray(rng.normal(1, 0.3, shape).astype(np.float32))

        return {
            "model": {"w": normal(n, width, 2), "b": normal(n, width)},
            "rows": Masked(normal(n, rows, width), jnp.asarray(rng.random((n, rows)) < 0.7)),
            "entries": Masked(normal(n, 2, 2), jnp.asarray(rng.random((n, 2, 2)) < 0.7)),
            "count": Metadata(jnp.asarray(np.arange(n, dtype=np.int32))),
        }

    return {
        "a": received(bucket(3, widths[0], 0), [True, False, True]),
        "b": received(bucket(2, widths[1], 1), [True, True], 3),
    }
