"""Differential privacy as a method around a method: what is hidden, how, and where that cannot be.

The update of a client is its upload minus the one that a newcomer without samples makes of the same
downlink, which says nothing of the client. By unit:

    client   every update is clipped to norm `clip`; the server adds N(0, (noise clip)^2) to their
    sum. Who sees the
             server's state learns little of a client; the server sees all.
    upload   every update is clipped, and the client adds that noise itself. Nobody learns much of
    it. sample   clients train by DP-SGD (`trust.dp_sgd`). Nobody learns much of one sample of a
    client.

In the first two every client counts as one sample, for the server and for itself, and whose result
is not finite sends an update of zero: neither counts nor absence tell anything. Where uplinks of
several shapes are summed apart, each sum has the whole noise, since a client is in one of them.
Counts of samples are public in the third.

What noise cannot hide is refused, see `trust.disclosure`.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bounds import MAX_SEED, NonNegative, Positive, Within, check_fields
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import privacy_key
from fedjax_ht.core.method import ClientInfo, Context, Method, PyTree, Received, around
from fedjax_ht.core.round import all_finite, any_state, select, without_samples
from fedjax_ht.core.uploads import comparable, is_leaf, is_payload, leaves_of, values_of
from fedjax_ht.core.wire import Masked
from fedjax_ht.trust.disclosure import check_samples, check_uploads
from fedjax_ht.trust.dp_sgd import clipped, dp_train, gaussian

Unit = Literal["client", "upload", "sample"]
Delta = Annotated[float, Within(above=0, below=1)]
Word = Annotated[int, Within(0, MAX_SEED)]


class Privacy(NamedTuple):
    """What is hidden, and how well.

    Attributes:
      unit: see the module's text.
      clip: L2 norm of an update or of a sample's gradient, over all its arrays.
      noise: standard deviation of the noise on the sum, in `clip`; 0 adds none, and hides nothing.
      delta: at which epsilon is told.
      secret: words that are folded into the key of the noise, besides the seed. Whoever knows seed
        and secret can take the noise away again: a seed that is written down hides nothing. They
        are constants of compiled programs, which then belong in no cache on disk, unless they are
        traced, as `fedjax_ht.deploy` has them.
    """

    unit: Unit
    clip: Positive = 1.0
    noise: NonNegative = 1.0
    delta: Delta = 1e-5
    secret: tuple[Word, ...] = ()


def private(method: Method, privacy: Privacy | None) -> Method:
    """The method with this privacy; the method itself without any.

    Its `check` raises a ValueError where the method's messages tell what noise cannot hide.

    Raises:
      ValueError: a field is out of range.
    """
    if privacy is None:
        return method
    check_fields(privacy, "privacy.")
    return around(method, functools.partial(_private, privacy))


def _private(privacy: Privacy, method: Method) -> Method:
    made = (
        _of_samples(method, privacy) if privacy.unit == "sample" else _of_clients(method, privacy)
    )

    def check(federation):
        method.check(federation)
        if privacy.unit == "sample":
            check_samples(method, federation)
        else:
            check_uploads(method, federation, sums=privacy.unit == "client")

    return made._replace(check=check)


def _of_samples(method: Method, privacy: Privacy) -> Method:
    train = functools.partial(dp_train, privacy.clip, privacy.noise, privacy.secret)

    def client_update(bucket, client, downlink, data, ctx):
        data = data._replace(trainer=jax.tree_util.Partial(train))
        return method.client_update(bucket, client, downlink, data, ctx)

    return method._replace(client_update=client_update)


def _of_clients(method: Method, privacy: Privacy) -> Method:
    def broadcast(federation, bucket, server, ctx):
        return method.broadcast(federation, bucket, server, _uncounted(ctx))

    def receive(bucket, client, downlink, data, ctx):
        return method.receive(bucket, client, downlink, data, _uncounted(ctx))

    def client_update(bucket, client, downlink, data, ctx):
        ctx, key = _uncounted(ctx), privacy_key(ctx.key, privacy.secret)
        new, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        fine = all_finite((new, uplink))
        nothing = without_samples(data)
        newcomer = any_state(method, bucket, ctx.key)
        newcomer = method.receive(bucket, newcomer, downlink, nothing._replace(round=()), ctx)
        _, untrained, _ = method.client_update(bucket, newcomer, downlink, nothing, ctx)
        uplink = _bounded(uplink, untrained, privacy.clip)
        if privacy.unit == "upload":
            uplink = _noised(uplink, privacy.clip * privacy.noise, key)
        return select(fine, new, client), uplink, metrics

    def server_update(federation, server, received: dict[str, Received], ctx):
        alike = {b: r._replace(info=_one_sample(r.info)) for b, r in received.items()}
        if privacy.unit == "client":
            key = privacy_key(ctx.key, privacy.secret)
            alike = noisy_sums(federation, alike, privacy.clip * privacy.noise, key)
        return method.server_update(federation, server, alike, ctx)

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


def _payload(leaves: Sequence) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if is_payload(leaf)]


def _with_values(uplink: PyTree, values: dict[int, jax.Array]) -> PyTree:
    """The uplink with other arrays in some of its leaves."""
    leaves = leaves_of(uplink)
    for i, x in values.items():
        leaves[i] = Masked(x, leaves[i].mask) if isinstance(leaves[i], Masked) else x
    return jax.tree.unflatten(jax.tree.structure(uplink, is_leaf=is_leaf), leaves)


def _bounded(uplink: PyTree, untrained: PyTree, clip: float) -> PyTree:
    """The upload with its update clipped, of what it sends all arrays together; `untrained` where
    it is not finite."""
    leaves, others = leaves_of(uplink), leaves_of(untrained)
    start = {i: _sent(others[i]) for i in _payload(leaves)}
    updates = {i: jnp.where(_rows(leaves[i]), values_of(leaves[i]) - start[i], 0) for i in start}
    return _with_values(uplink, jax.tree.map(jnp.add, start, clipped(updates, clip)))


def _rows(leaf) -> jax.Array:
    """What of a leaf is sent, bool, to be broadcast against its array."""
    if not isinstance(leaf, Masked):
        return jnp.array(True)
    return leaf.mask.reshape(leaf.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))


def _sent(leaf) -> jax.Array:
    return jnp.where(_rows(leaf), values_of(leaf), 0)


def _noised(uplink: PyTree, scale: float, key: jax.Array) -> PyTree:
    leaves = leaves_of(uplink)
    values = {i: values_of(leaves[i]) for i in _payload(leaves)}
    return _with_values(uplink, jax.tree.map(jnp.add, values, gaussian(key, values, scale)))


def noisy_sums(
    federation: Federation, received: dict[str, Received], scale: float, key: jax.Array
) -> dict[str, Received]:
    """Uploads whose sum over clients has noise N(0, scale^2) in every entry that somebody sends,
    for uplinks of each shape apart: the noise is added to the upload of the first client, by id,
    that sends the entry.

    Args:
      federation: of the buckets.
      received: bucket name -> uplinks.
      scale: standard deviation.
      key: of the round.
    """
    out = {}
    for part in comparable(received, nested=False):
        # Neither the order of buckets nor padding may decide what is drawn.
        own = min(federation.members(b)[0] for b in federation.buckets if b.name in part)
        joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *part.values())
        leaves, noise = leaves_of(joined.uplink), {}
        for i in _payload(leaves):
            values = values_of(leaves[i])

            def along(x, values=values):
                return x.reshape(-1, *(1,) * (values.ndim - 1))

            there, ids = along(joined.arrived) & _rows(leaves[i]), along(joined.info.id)
            first = jnp.min(jnp.where(there, ids, federation.num_clients), axis=0)
            drawn = gaussian(jax.random.fold_in(jax.random.fold_in(key, own), i), values[0], scale)
            noise[i] = values + jnp.where(there & (ids == first), drawn, 0)
        joined, start = _with_values(joined.uplink, noise), 0
        for name, r in part.items():
            stop = start + len(r.arrived)
            out[name] = r._replace(uplink=jax.tree.map(lambda x, a=start, b=stop: x[a:b], joined))
            start = stop
    return {name: out[name] for name in received}
