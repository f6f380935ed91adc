"""Means within architectures: one for each group of clients with the same shared parameters.

Names and shapes of the shared parameters are equal in a group; other parameters may differ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import Bucket, init_variables, model_form
from fedjax_ht.core.context import Context, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import ClientUpdate, Method, Needs, Wire
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, mean_model, sent_samples
from fedjax_ht.methods.shared.supervised import train_model


class Part(NamedTuple):
    """The part of a model that clients share.

    Attributes:
      of: (bucket, parameters {"base", "head"} of a client's model) -> the shared parameters.
      put: (parameters of a client's model, the shared ones) -> the model's new parameters.
    """

    of: Callable[[Bucket, PyTree], PyTree]
    put: Callable[[PyTree, PyTree], PyTree]


WHOLE = Part(of=lambda bucket, params: params, put=lambda params, shared: shared)
EXTRACTOR = Part(
    of=lambda bucket, params: params["base"], put=lambda params, base: params | {"base": base}
)
HEAD = Part(
    of=lambda bucket, params: params["head"], put=lambda params, head: params | {"head": head}
)


def groups_of(federation: Federation, part: Part = WHOLE) -> list[list[Bucket]]:
    """Groups buckets whose shared parameters have equal names and shapes, by lowest client id."""
    groups: dict[str, list[Bucket]] = {}
    for bucket in sorted(federation.buckets, key=federation.members):
        model = model_form(bucket)
        groups.setdefault(str(part.of(bucket, model["params"])), []).append(bucket)
    return list(groups.values())


def sizes_of(federation: Federation) -> list[int]:
    """Counts the clients in each group of `groups_of`, except those that never train."""
    return [sum(map(federation.num_training, group)) for group in groups_of(federation)]


def require_no_new_clients(name: str, federation: Federation) -> None:
    """Raises a one-line ValueError if some clients never train, for a server that shares a mean
    out among all."""
    if any(federation.new):
        raise ValueError(
            f"{name} gives every client a share in the server's means, also those of new_share, "
            "which never train; set new_share to 0"
        )


def init_parts(federation: Federation, key: jax.Array, part: Part = WHOLE) -> list[PyTree]:
    """Initialises the shared parameters of each group."""
    parts = []
    for i, (bucket, *_) in enumerate(groups_of(federation, part)):
        model = init_variables(bucket, jax.random.fold_in(key, i))
        parts.append(part.of(bucket, model["params"]))
    return parts


def part_for(
    federation: Federation, bucket: Bucket, parts: list[PyTree], *, part: Part = WHOLE
) -> PyTree:
    """Returns the part of a bucket's group from a list with one part per group."""
    groups = groups_of(federation, part)
    (place,) = (i for i, group in enumerate(groups) if bucket in group)
    return parts[place]


def joined(
    federation: Federation, received: dict[str, Received], part: Part = WHOLE
) -> list[Received]:
    """Joins the uplinks of each group, in the order of `gather_received`."""
    uploads = []
    for group in groups_of(federation, part):
        uploads.append(gather_received({bucket.name: received[bucket.name] for bucket in group}))
    return uploads


def receive_model(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Replaces the parameters of a client's model with the downlink; a `Method.receive`."""
    return client | {"params": downlink}


def plain_update(training: LocalTraining, weighting: Weighting, part: Part = WHOLE) -> ClientUpdate:
    """Makes the `Method.client_update` of local training whose result, or a part, is averaged."""

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        sent = part.of(bucket, client["params"])
        return client, ModelUplink(sent, sent_samples(ctx, weighting)), {"loss": result.loss}

    return client_update


def averaging_method(
    name: str,
    training: LocalTraining,
    client_update: ClientUpdate,
    part: Part = WHOLE,
    **functions: Any,
) -> Method:
    """Makes a method whose clients average their models, or a part of them.

    The server's state is a list with one part for each group of `groups_of`. The downlink is the
    group's part, and the uplink an `averaging.ModelUplink` of it; a method whose states or uploads
    differ brings its own `init_server`, `broadcast` or `server_update`.

    Args:
      name: the method's name.
      training: local training.
      client_update: trains a client; a `Method.client_update`.
      part: the shared part.
      **functions: fields of `Method` in place of those made here.
    """

    def init_server(federation, key):
        return init_parts(federation, key, part)

    def broadcast(federation, bucket, server, ctx):
        return part_for(federation, bucket, server, part=part)

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": part.put(client["params"], downlink)}

    def server_update(federation, server, received, ctx):
        return mean_parts(federation, server, received, part=part), {}

    return Method(
        name=name,
        training=training,
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        needs=Needs(classes=False),
        wire=Wire(server_reads="sums"),
    )._replace(**functions)


def mean_parts(
    federation: Federation,
    parts: list[PyTree],
    received: dict[str, Received],
    *,
    part: Part = WHOLE,
) -> list[PyTree]:
    """Averages each group's uploads.

    Args:
      federation: the federation, whose buckets form the groups.
      parts: the previous shared parameters, kept if no client of a group with samples arrived.
      received: uplinks of type `averaging.ModelUplink`.
      part: selects the shared part of a model.

    Returns:
      The new shared parameters of each group; weights are those of `averaging.client_weights`.
    """
    return [mean_model(old, x) for old, x in zip(parts, joined(federation, received, part))]


def apart_from_mean(name: str, kept: str) -> Callable[..., list[PyTree]]:
    """Makes a `View.invariant`: the server's value of each group less the mean over its clients.

    Args:
      name: the value's field in the server's state of a group.
      kept: the entry of a client's state; clients without a row count as zeros.
    """

    def invariant(federation: Federation, server: list, clients: dict[str, PyTree]):
        apart = []
        for group, state, size in zip(groups_of(federation), server, sizes_of(federation)):
            value = getattr(state, name)
            for bucket in group:
                rows = clients[bucket.name][kept]
                shares = jax.tree.map(lambda x, n=size: x.sum(0) / n, rows)
                value = jax.tree.map(jnp.subtract, value, shares)
            apart.append(value)
        return apart

    return invariant
