"""Differential privacy as a method around a method.

A client's update is its upload minus the one that a newcomer without samples makes of the same
downlink, which depends on nothing of the client. By unit:

    client   Every update is clipped to norm `clip`; the server adds N(0, (noise clip)^2) to their
             sum. The server's state tells little of a client; the server itself sees all uploads.
    upload   Every update is clipped, and the client adds that noise itself. An upload tells little
             of its client, to the server too.
    sample   Clients train by DP-SGD (`trust.dp_sgd`). Nothing tells much of one sample.

In the first two every client counts as one sample, for the server and for itself, and a client
whose result is not finite sends an update of zero: neither counts nor absence tell anything. Where
uplinks of several shapes are summed apart, each sum has the whole noise, since a client is in one
of them. Counts of samples are public in the third.

What noise cannot hide is refused, see `trust.disclosure`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import check_fields
from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import privacy_key
from fedjax_ht.core.method import Method, around
from fedjax_ht.core.round import without_samples
from fedjax_ht.core.states import any_state
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import (
    all_finite,
    dense,
    leaves_of,
    payload_leaves,
    sent_rows,
    values_of,
    with_payload,
)
from fedjax_ht.trust.disclosure import check_samples, check_uploads
from fedjax_ht.trust.dp_sgd import clipped, dp_train, gaussian
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.vectors import comparable


def private(method: Method, privacy: Privacy | None) -> Method:
    """Returns the method with this privacy.

    Args:
      method: any method.
      privacy: the unit, clipping and noise; None returns the method itself.

    Returns:
      A method whose `check` raises a ValueError where its messages tell what noise cannot hide.

    Raises:
      ValueError: a field of `privacy` is out of range.
    """
    if privacy is None:
        return method
    check_fields(privacy, "privacy.")
    return around(method, functools.partial(_private, privacy))


def _private(privacy: Privacy, method: Method) -> Method:
    of_samples = privacy.unit == "sample"
    made = _private_samples(method, privacy) if of_samples else _private_clients(method, privacy)

    def check(federation):
        method.check(federation)
        if of_samples:
            check_samples(method, federation)
        else:
            check_uploads(method, federation, sums=privacy.unit == "client")

    return made._replace(check=check)


def _private_samples(method: Method, privacy: Privacy) -> Method:
    train = functools.partial(dp_train, privacy.clip, privacy.noise, privacy.secret)

    def client_update(bucket, client, downlink, data, ctx):
        data = data._replace(trainer=jax.tree_util.Partial(train))
        return method.client_update(bucket, client, downlink, data, ctx)

    return method._replace(client_update=client_update)


def _private_clients(method: Method, privacy: Privacy) -> Method:
    def broadcast(federation, bucket, server, ctx):
        return method.broadcast(federation, bucket, server, _uncounted(ctx))

    def receive(bucket, client, downlink, data, ctx):
        return method.receive(bucket, client, downlink, data, _uncounted(ctx))

    def client_update(bucket, client, downlink, data, ctx):
        ctx, key = _uncounted(ctx), privacy_key(ctx.key, privacy.secret)
        new, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        finite = all_finite((new, uplink))
        # A newcomer's state, since one that this client keeps depends on its samples.
        nothing = without_samples(data)
        newcomer = any_state(method, bucket, ctx.key)
        newcomer = method.receive(bucket, newcomer, downlink, nothing._replace(round=()), ctx)
        _, untrained, _ = method.client_update(bucket, newcomer, downlink, nothing, ctx)
        uplink = _clip_update(uplink, untrained, privacy.clip)
        if privacy.unit == "upload":
            uplink = _add_noise(uplink, privacy.clip * privacy.noise, key)
        return select(finite, new, client), uplink, metrics

    def server_update(federation, server, received: dict[str, Received], ctx):
        uncounted = {}
        for name, r in received.items():
            uncounted[name] = r._replace(info=_one_sample(r.info))
        if privacy.unit == "client":
            key = privacy_key(ctx.key, privacy.secret)
            uncounted = noisy_sums(federation, uncounted, privacy.clip * privacy.noise, key)
        return method.server_update(federation, server, uncounted, ctx)

    return method._replace(
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
    )


def _one_sample(info: ClientInfo) -> ClientInfo:
    return info._replace(num_samples=jnp.ones_like(info.num_samples))


def _uncounted(ctx: Context) -> Context:
    return ctx if ctx.info is None else ctx._replace(info=_one_sample(ctx.info))


def _clip_update(uplink: PyTree, untrained: PyTree, clip: float) -> PyTree:
    """Clips the update in an upload, over all arrays of its payload together.

    The result is `untrained` where the update is not finite.
    """
    untrained_leaves, starts, updates = leaves_of(untrained), {}, {}
    for place, leaf in payload_leaves(uplink).items():
        starts[place] = dense(untrained_leaves[place])
        # Rows that are not sent may be anything, and are no part of the update.
        difference = values_of(leaf) - starts[place]
        updates[place] = jnp.where(sent_rows(leaf), difference, 0)
    return with_payload(uplink, jax.tree.map(jnp.add, starts, clipped(updates, clip)))


def _add_noise(uplink: PyTree, scale: float, key: jax.Array) -> PyTree:
    values = {place: values_of(leaf) for place, leaf in payload_leaves(uplink).items()}
    noise = gaussian(key, values, scale)
    return with_payload(uplink, jax.tree.map(jnp.add, values, noise))


def noisy_sums(
    federation: Federation, received: dict[str, Received], scale: float, key: jax.Array
) -> dict[str, Received]:
    """Adds noise N(0, scale^2) to the sum over clients of every entry that any of them sends.

    For uplinks of each shape apart: the noise is added to the upload of the first client, by id,
    that sends the entry.

    Args:
      federation: the federation of the buckets.
      received: bucket name -> uplinks.
      scale: standard deviation of the noise.
      key: the key of the round.

    Returns:
      bucket name -> uplinks, in the order of `received`.
    """
    noisy = {}
    for part in comparable(received, nested=False):
        # The part's first client: neither the order of buckets nor padding may decide what is
        # drawn.
        first_client = min(federation.members(b)[0] for b in federation.buckets if b.name in part)
        joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *part.values())
        arrays = {}
        for place, leaf in payload_leaves(joined.uplink).items():
            leaf_key = jax.random.fold_in(jax.random.fold_in(key, first_client), place)
            arrays[place] = _noisy_array(joined, leaf, federation.num_clients, scale, leaf_key)
        uplink, start = with_payload(joined.uplink, arrays), 0
        for name, r in part.items():
            stop = start + len(r.arrived)
            bucket_rows = functools.partial(_rows_between, start, stop)
            noisy[name] = r._replace(uplink=jax.tree.map(bucket_rows, uplink))
            start = stop
    return {name: noisy[name] for name in received}


def _rows_between(start: int, stop: int, x: jax.Array) -> jax.Array:
    return x[start:stop]


def _noisy_array(
    received: Received, leaf: Any, absent: int, scale: float, key: jax.Array
) -> jax.Array:
    """Adds noise to each entry of one leaf, in the row of the first client that sends the entry.

    Args:
      received: the uplinks that `leaf` is a part of.
      leaf: array or `Masked` with a leading axis of clients.
      absent: a number above any client's id.
      scale: standard deviation of the noise.
      key: the key of the noise on this leaf.
    """
    values = values_of(leaf)

    def by_client(x):
        return x.reshape(-1, *(1,) * (values.ndim - 1))

    sends = by_client(received.arrived) & sent_rows(leaf)
    ids = by_client(received.info.id)
    first = jnp.min(jnp.where(sends, ids, absent), axis=0)
    noise = gaussian(key, values[0], scale)
    return values + jnp.where(sends & (ids == first), noise, 0)
