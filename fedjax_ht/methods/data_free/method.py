"""The round of a distilling method: its base's round, then the server's training.

A config's method "fedrolex+dfrd" is DFRD on the base "fedrolex", see `bases`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import options_of
from fedjax_ht.core.batches import take_batch
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import image_shape
from fedjax_ht.core.local_training import LocalTraining, label_counts
from fedjax_ht.core.method import GlobalModel, Method, Needs
from fedjax_ht.core.samples import Data
from fedjax_ht.core.statistics import norm_moments, normalises_by_batch
from fedjax_ht.core.trees import Array, PyTree, select
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.data_free.bases import Base, Server, gather_teachers, make_base, sent_model
from fedjax_ht.methods.data_free.distil import Objective, distil
from fedjax_ht.methods.data_free.image_generator import (
    WITH_GENERATOR,
    init_generator,
    make_generator,
    num_doublings,
    settle_statistics,
)
from fedjax_ht.methods.data_free.options import FORMS, Distillation
from fedjax_ht.methods.shared.supervised import count_labels
from fedjax_ht.methods.shared.variants import Variant, settled

MOMENT_SAMPLES = 256  # a client's samples for the moments that it uploads
PICTURES = 40  # most pictures per generator, but at least one per class


class Client(NamedTuple):
    """A client's state.

    Attributes:
      model: the base's client.
      seen: int32 [C], labels trained on so far; () if these are not counted.
    """

    model: PyTree
    seen: Array | tuple[()]


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      model: the base's uplink.
      label_counts: Metadata(int32 [C]), c_i^y; () if labels are not counted.
      moments: moments of norms' inputs, see `core.statistics`; () if they are not compared.
    """

    model: PyTree
    label_counts: Metadata | tuple
    moments: PyTree


def own_moments(bucket: Bucket, params: PyTree, data: Data) -> PyTree:
    """Computes moments of norms' inputs on the first `MOMENT_SAMPLES` of a client's samples."""
    indices, number = data.splits["train"]
    batch = take_batch(data, indices, number, jnp.int32(0), MOMENT_SAMPLES)
    return norm_moments(bucket, params, batch.x, batch.mask)[1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def pictures(recipe: Distillation, federation: Federation, server: Server) -> dict[str, jax.Array]:
    """Renders images of the generator and of its moving average, if there is one.

    Returns:
      float [n, H, W, channels] in [0, 1] by title; images cycle through the classes, and the
      generator's -1 is black.
    """
    rows = max(1, PICTURES // federation.num_classes)
    labels = jnp.tile(jnp.arange(federation.num_classes), rows)
    noise = jax.random.normal(jax.random.key(0), (len(labels), recipe.noise_dim))

    def render(variables):
        made: Any = make_generator(federation, recipe).apply(variables, noise, labels, False)
        return (made.images + 1) / 2

    shown = {"generator": render(server.generator)}
    if server.average:
        shown["moving average"] = render(server.average)
    return shown


def settle(
    losses: Callable[..., Objective], variant: Variant, options: dict[str, Any]
) -> tuple[Distillation, Objective]:
    """Makes recipe and losses; options that are not given, or None, take the variant's values.

    Args:
      losses: (recipe, **options) -> the losses.
      variant: a key of `FORMS`.
      options: fields of `Distillation` and options of `losses`, by name.
    """
    fields = options_of(Distillation)
    known = fields | options_of(losses)
    defaults = {name: p.default for name, p in known.items() if p.kind is p.KEYWORD_ONLY}
    own = settled(variant, defaults | options, FORMS)
    recipe = Distillation(**{name: own.pop(name) for name in fields})
    return recipe, losses(recipe, **own)


def distilling(
    name: str,
    losses: Callable[..., Objective],
    training: LocalTraining,
    base: str | Base,
    variant: Variant,
    **options,
) -> Method:
    """Makes a method that distils.

    Args:
      name: name of the distillation; the method is called "BASE+NAME", or NAME on the base "none".
      losses: (recipe, **options) -> the method's losses.
      training: local training; its labels are counted.
      base, variant: arguments of `make_base`.
      **options: options of `make_base` and `losses`, and fields of `Distillation`.
    """
    of_base = {name: options.pop(name) for name in options_of(make_base) if name in options}
    recipe, objective = settle(losses, variant, options)
    base = make_base(base, training, variant, **of_base)
    with_moments = objective.with_moments
    below = base.method
    feedback = recipe.feedback or below.name == "none"  # without a base nothing is averaged
    # A generator that is never trained has no moving average.
    averaging = recipe.images == "generator" and recipe.alpha != 0
    name = name if below.name == "none" else f"{below.name}+{name}"

    def check(federation: Federation) -> None:
        if federation.global_model is None:
            raise ValueError(
                f"{name} needs a global model; make the federation with make_sliced_federation "
                "(in a config: set model.rates)"
            )
        below.check(federation)
        width = federation.buckets[0].width
        if below.name == "fedavg" and width != 1:
            raise ValueError(f"{name} averages whole models; all rates must be 1, not {width}")
        if with_moments and not normalises_by_batch(federation.server_model):
            raise ValueError(
                f"{name} compares moments of batch norms, but the models have none; set b_bn=0"
            )
        num_doublings(image_shape(federation.server_model.input_shape, name))

    def init_server(federation, key):
        model, generator_key = below.init_server(federation, key), jax.random.fold_in(key, 1)
        module, generator = make_generator(federation, recipe), ()
        if recipe.images in WITH_GENERATOR:
            generator = init_generator(module, generator_key)
        if recipe.images == "untrained":
            statistics_key = jax.random.fold_in(key, 2)
            generator = settle_statistics(module, generator, recipe.batch_size, statistics_key)
        return Server(
            model=model,
            averaged=() if feedback else model,
            generator=generator,
            average=generator if averaging else (),
            has_taught=jnp.array(False),
        )

    def init_client(bucket, ctx):
        seen = jnp.zeros(bucket.num_classes, jnp.int32) if recipe.counts == "seen_so_far" else ()
        return Client(below.init_client(bucket, ctx), seen)

    def broadcast(federation, bucket, server, ctx):
        return below.broadcast(federation, bucket, sent_model(server), ctx)

    def receive(bucket, client, downlink, data, ctx):
        return client._replace(model=below.receive(bucket, client.model, downlink, data, ctx))

    def count(seen, data, key, num_classes) -> Array | tuple[()]:
        """Counts c_i^y of a client's round, int32 [C]; () if labels are not counted."""
        if recipe.counts == "none":
            return ()
        if recipe.counts == "full":
            return count_labels(data, num_classes)
        used = label_counts(training, data, key, num_classes)
        if recipe.counts == "this_round":
            return used
        return jnp.minimum(seen + used, count_labels(data, num_classes))

    def client_update(bucket, client, downlink, data, ctx):
        model, uplink, metrics = below.client_update(bucket, client.model, downlink, data, ctx)
        counts = count(client.seen, data, ctx.key, bucket.num_classes)
        seen = counts if recipe.counts == "seen_so_far" else ()
        sent = () if recipe.counts == "none" else Metadata(counts)
        moments = own_moments(bucket, model["params"], data) if with_moments else ()
        return Client(model, seen), Uplink(uplink, sent, moments), metrics

    def server_update(federation, server, received, ctx):
        models = {b: received[b]._replace(uplink=received[b].uplink.model) for b in received}
        model, metrics = below.server_update(federation, sent_model(server), models, ctx)
        teachers = gather_teachers(federation, received, base.uploaded)
        averaged = server._replace(model=model)
        new, losses = distil(recipe, objective, federation, teachers, averaged, ctx)
        if server.averaged:
            new = new._replace(averaged=model)
        return select(teachers.present.any(), new, server), metrics | losses

    def predict(bucket, client, downlink, x, mask):
        return below.predict(bucket, client.model, downlink, x, mask)

    def client_features(bucket, client, x, mask):
        assert below.view.features is not None  # every base has features
        return below.view.features(bucket, client.model, x, mask)

    shown = functools.partial(pictures, recipe) if recipe.images in WITH_GENERATOR else None
    # every teacher runs separately
    wire = below.wire._replace(server_reads="uploads")
    if recipe.counts == "this_round":
        wire = wire._replace(counts="steps")

    return below._replace(
        name=name,
        check=check,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        global_model=GlobalModel(lambda server: server.model),
        needs=Needs(clients_data=recipe.images == "real"),
        wire=wire,
        view=below.view._replace(features=client_features, pictures=shown),
    )
