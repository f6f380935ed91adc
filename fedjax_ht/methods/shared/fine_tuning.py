"""The round of a method that distils its clients' models on the server: that of its base, then
`distillation.distil`.

A config's method "fedrolex+dfrd" is DFRD on the base "fedrolex", see `bases` and `composition`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.inputs import image_shape
from fedjax_ht.core.local_training import LocalTraining, label_counts, take_batch
from fedjax_ht.core.method import Data, Method, PyTree, Received
from fedjax_ht.core.round import gather_received, select
from fedjax_ht.core.statistics import norm_moments
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.shared.bases import Base, make_base
from fedjax_ht.methods.shared.distillation import (
    Counts,
    Distillation,
    Learner,
    Objective,
    init_generator,
    make_generator,
    moving_average,
)
from fedjax_ht.methods.shared.distillation_loop import distil
from fedjax_ht.methods.shared.ensemble import Teachers, keep_present, label_weights
from fedjax_ht.methods.shared.image_source import WITH_GENERATOR, settle
from fedjax_ht.methods.shared.supervised import count_labels
from fedjax_ht.models.conditional import num_doublings

MOMENT_SAMPLES = 256  # of a client, for the moments that it uploads
PICTURES = 40  # of each generator at most, but one a class


class Client(NamedTuple):
    """model: the base's client. seen: int32 [C], labels trained on so far, or () where they do not
    count."""

    model: PyTree
    seen: jax.Array | tuple


class Uplink(NamedTuple):
    """model: the base's uplink. label_counts: Metadata(int32 [C]) or (). moments: of norms' inputs,
    or ()."""

    model: PyTree
    label_counts: Metadata | tuple
    moments: PyTree


class Server(NamedTuple):
    """What the server keeps.

    Attributes:
      model: the global model's parameters, distilled.
      averaged: those that clients go on from; () where that is `model`.
      generator: {"params", "batch_stats"}; () without.
      average: its moving average; () without.
    """

    model: PyTree
    averaged: PyTree
    generator: PyTree
    average: PyTree


def count(
    kind: Counts,
    training: LocalTraining,
    seen: jax.Array | tuple,
    data: Data,
    key: jax.Array,
    num_classes: int,
) -> tuple[jax.Array | tuple, Metadata | tuple]:
    """A client's new `seen`, and c_i^y as it uploads it; training, data and key as of its local
    training."""
    if kind == "none":
        return (), ()
    if kind == "full":
        return (), Metadata(count_labels(data, num_classes))
    used = label_counts(training, data, key, num_classes)
    if kind == "this_round":
        return (), Metadata(used)
    seen = jnp.minimum(seen + used, count_labels(data, num_classes))
    return seen, Metadata(seen)


def own_moments(bucket: Bucket, params: PyTree, data: Data) -> PyTree:
    """Moments of norms' inputs on some of a client's training samples, see `core.statistics`."""
    indices, number = data.splits["train"]
    batch = take_batch(data, indices, number, jnp.int32(0), MOMENT_SAMPLES)
    return norm_moments(bucket, params, batch.x, batch.mask)[1]


def gather_teachers(
    buckets: Sequence[Bucket],
    received: dict[str, Received],
    uploaded: Callable[[PyTree], PyTree],
    num_classes: int,
) -> Teachers:
    """The models that arrived from clients with samples, by bucket and client id."""
    params, moments, counts, present = {}, {}, [], []
    for bucket in buckets:
        uplink, info, arrived = gather_received({bucket.name: received[bucket.name]})
        here = arrived & (info.num_samples > 0)
        params[bucket.name] = keep_present(uploaded(uplink.model), here)
        moments[bucket.name] = keep_present(uplink.moments, here)
        counts.append(
            uplink.label_counts.value if uplink.label_counts else jnp.ones((len(here), num_classes))
        )
        present.append(here)
    present = jnp.concatenate(present)
    weights, label_shares = label_weights(jnp.concatenate(counts), present)
    return Teachers(params, moments, weights, label_shares, present)


@functools.partial(jax.jit, static_argnums=(0, 1))
def pictures(recipe: Distillation, federation: Federation, server: Server) -> dict[str, jax.Array]:
    """Images of the generator and of its moving average, if there is one, class by class, and
    again: float [n, H, W, channels] in [0, 1], of which -1 is black."""
    rows = max(1, PICTURES // federation.num_classes)
    labels = jnp.tile(jnp.arange(federation.num_classes), rows)
    noise = jax.random.normal(jax.random.key(0), (len(labels), recipe.noise_dim))

    def render(variables):
        return make_generator(federation, recipe).apply(variables, noise, labels, False)

    shown = {"generator": server.generator} | (
        {"moving average": server.average} if server.average else {}
    )
    return {title: (render(variables).images + 1) / 2 for title, variables in shown.items()}


def fine_tuning(
    name: str, training: LocalTraining, base: str | Base, recipe: Distillation, objective: Objective
) -> Method:
    """A method that distils.

    Args:
      name: of the distillation; the method is called "BASE+NAME", or NAME on the base "none".
      training: local training, of which labels are counted.
      base: a name in `BASES`, or what `make_base` returned.
      recipe: how the server trains.
      objective: on what.
    """
    below, uploaded = make_base(base, training) if isinstance(base, str) else base
    feedback = recipe.feedback or below.name == "none"  # there nothing is averaged
    # of what is never trained there is no average
    averaging = recipe.images == "generator" and recipe.alpha != 0
    name = name if below.name == "none" else f"{below.name}+{name}"

    def check(federation: Federation) -> None:
        if federation.global_model is None:
            raise ValueError(
                f"{name} needs a global model; make the federation by make_sliced_federation "
                "(in a config: set model.rates)"
            )
        below.check(federation)
        if below.name == "fedavg" and federation.buckets[0].width != 1:
            raise ValueError(
                f"{name} averages whole models; all rates must be 1, not "
                f"{federation.buckets[0].width}"
            )
        num_doublings(image_shape(federation.global_model.input_shape, name))

    def init_server(federation, key):
        model, generator_key = below.init_server(federation, key), jax.random.fold_in(key, 1)
        module, generator = make_generator(federation, recipe), ()
        if recipe.images in WITH_GENERATOR:
            generator = init_generator(module, generator_key)
        if recipe.images == "untrained":
            generator = settle(module, generator, recipe.batch_size, jax.random.fold_in(key, 2))
        return Server(model, () if feedback else model, generator, generator if averaging else ())

    def init_client(bucket, ctx):
        seen = jnp.zeros(bucket.num_classes, jnp.int32) if recipe.counts == "seen_so_far" else ()
        return Client(below.init_client(bucket, ctx), seen)

    def going_on(server: Server) -> PyTree:
        return server.model if feedback else server.averaged

    def broadcast(federation, bucket, server, ctx):
        return below.broadcast(federation, bucket, going_on(server), ctx)

    def receive(bucket, client, downlink, data, ctx):
        return client._replace(model=below.receive(bucket, client.model, downlink, data, ctx))

    def client_update(bucket, client, downlink, data, ctx):
        model, uplink, metrics = below.client_update(bucket, client.model, downlink, data, ctx)
        seen, counts = count(
            recipe.counts, training, client.seen, data, ctx.key, bucket.num_classes
        )
        moments = own_moments(bucket, model["params"], data) if objective.with_moments else ()
        return Client(model, seen), Uplink(uplink, counts, moments), metrics

    def server_update(federation, server, received, ctx):
        models = {b: received[b]._replace(uplink=received[b].uplink.model) for b in received}
        model, metrics = below.server_update(federation, going_on(server), models, ctx)
        buckets = sorted(federation.buckets, key=lambda bucket: -bucket.width)
        teachers = gather_teachers(buckets, received, uploaded, federation.num_classes)
        learner, losses = distil(
            recipe,
            objective,
            federation,
            buckets,
            teachers,
            Learner(model, server.generator),
            server.average,
            ctx.round,
            jax.random.fold_in(ctx.key, 1),
            ctx.data,
        )
        # it begins with the first trained generator
        decay = jnp.where(ctx.round == 0, 0.0, recipe.decay)
        average = moving_average(server.average, learner.generator, decay) if averaging else ()
        new = Server(learner.model, () if feedback else model, learner.generator, average)
        return select(teachers.present.any(), new, server), metrics | losses

    return below._replace(
        name=name,
        check=check,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=lambda bucket, client, downlink, x, mask: below.predict(
            bucket, client.model, downlink, x, mask
        ),
        global_params=lambda server: server.model,
        sees_data=recipe.images == "real",
        wire=below.wire._replace(server_reads="uploads"),  # every teacher is asked by itself
        view=below.view._replace(
            features=lambda bucket, client, x, mask: below.view.features(
                bucket, client.model, x, mask
            ),
            pictures=functools.partial(pictures, recipe)
            if recipe.images in WITH_GENERATOR
            else None,
        ),
    )
