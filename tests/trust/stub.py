"""A method whose messages are plain numbers."""

import jax.numpy as jnp

from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.wire import Masked, Metadata
from tests import tiny
from tests.federations import TRAINING

FEDERATION = tiny.linear_federation()
BUCKET = FEDERATION.buckets[0]


def stub(
    update=lambda client, data: jnp.ones(3), masked: bool = False, sliced: bool = False, **fields
) -> Method:
    """Sends the downlink plus an update, some of it masked, and counts; its state is `update`."""

    def client_update(bucket, client, downlink, data, ctx):
        change = jnp.where(data.splits["train"].count > 0, update(client, data), 0)
        model = downlink + change
        if sliced and bucket != BUCKET:
            model = model[:2]
        uplink = {"model": model, "count": Metadata(ctx.info.num_samples)}
        if masked:
            rows = jnp.outer(jnp.array([1.0, 1e9]), model)
            uplink["rows"] = Masked(rows, jnp.array([True, False]))
        return change, uplink, {}

    def server_update(federation, server, received, ctx):
        return received, {}

    method = Method(
        name="stub",
        training=TRAINING,
        init_server=lambda federation, key: jnp.zeros(3),
        init_client=lambda bucket, ctx: jnp.zeros(3),
        broadcast=lambda federation, bucket, server, ctx: server,
        client_update=client_update,
        server_update=server_update,
        predict=None,
        wire=Wire(server_reads="sums"),
    )
    return method._replace(**fields)
