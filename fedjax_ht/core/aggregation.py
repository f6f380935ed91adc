"""The server's part of a round: joins the uplinks of all buckets and updates the server."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_ht.core.context import Context, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import select


def server_step(method: Method, federation: Federation) -> Callable:
    """Returns the server's step of a round; it changes nothing if no uplink arrives.

    It is (server, {bucket: Received}, root, round, Pretrained.variables, Context.data) -> (server,
    metrics).
    """

    def run(server, received: dict[str, Received], root, round, pretrained=(), data=None):
        shared = round_key(root, Purpose.SHARED, round)
        ctx = Context(
            round_key(root, Purpose.SERVER, round),
            round,
            None,
            pretrained=pretrained,
            shared_key=shared,
            data=data,
        )
        dated, anyone = {}, []
        for name, r in received.items():
            if r.sent_round is None:  # no late uploads: all belong to this round
                rounds = jnp.full(r.arrived.shape, round, jnp.int32)
                r = r._replace(info=r.info._replace(sent_round=rounds))
            dated[name] = r
            anyone.append(r.arrived.any())
        new, metrics = method.server_update(federation, server, dated, ctx)
        anyone = jnp.stack(anyone).any()
        return select(anyone, new, server), metrics

    return run


def gather_received(received: dict[str, Received]) -> Received:
    """Joins all buckets' uplinks, which need equal shapes, by client id; absent clients come last.

    The result does not depend on the order of buckets or on padding. A sum over one bucket needs no
    such copy: its rows are already sorted by client id, and absent clients have no weight.

    Example:
      >>> def uploads(ids, rows, arrived):
      ...     info = fl.ClientInfo(jnp.array(ids), jnp.array([5, 5]), jnp.array([0, 0]))
      ...     return fl.Received(jnp.array(rows), info, jnp.array(arrived))
      >>> narrow = uploads([1, 3], [[1.0], [3.0]], arrived=[True, False])
      >>> wide = uploads([0, 2], [[0.0], [2.0]], arrived=[True, True])
      >>> joined = fl.gather_received({"narrow": narrow, "wide": wide})
      >>> joined.uplink[:, 0], joined.arrived
      (Array([0., 1., 2., 3.], dtype=float32), Array([ True,  True,  True, False], dtype=bool))
    """
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *received.values())
    rank = jnp.where(joined.arrived, joined.info.id, jnp.iinfo(jnp.int32).max)
    return jax.tree.map(lambda x: x[jnp.argsort(rank, stable=True)], joined)
