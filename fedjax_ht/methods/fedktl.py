"""FedKTL (Zhang et al., CVPR 2024): the server turns prototypes into images of a pre-trained
generator, with vectors that clients regress them to.

    client:  z = h(f(x)), cos_c = z . v_c / |z|, V = (v_c) a fixed ETF; per batch
             L = ArcFace(cos, y) + mu * mean ||h'(f(I_c)) - Qbar_c||^2 over a mini-batch of the C
             pairs (I_c, Qbar_c), h' being linear, the same at the start of every client's round,
             and thrown away after it upload P_c = mean of z, for own classes
    server:  train F, E_S epochs: L_MMD(F(P), valid latents) + lambda * L_MSE(F(P), class means of
      F(P))
             Qbar_c = mean of F(P_c), I_c = G_s(Qbar_c); send the pairs
    predict: the class of the largest cosine

Settled here:
* Latents are as the generator has them, on both sides and on the wire. lambda, mu, fixed kernels
  and F's steps then depend on the scale of w; latents="spread" takes that out (`generators.units`).
* F's batch norm takes the statistics of the prototypes at hand, also when it makes Qbar, and keeps
  none: running ones lag behind by many deviations.
* F's range is the ball about W's mean that holds a thousand valid latents: what F puts outside is
  moved to its surface. The paper has no such bound (bounded=False): far away all kernels vanish,
  nothing pulls back, and Adam goes on.
* The paper names no widths of the RBF kernels. They follow the median distance of valid latents
  (`bandwidths`).
* variant="released" is the authors' loop as it runs: features are made unit vectors before and
  after averaging; L_MSE is against a trainable table, over the batch, so that classes of many
  clients weigh more; that table is normal at first, goes on from round to round, and is the Qbar
  that is sent. Their code sets it to class means of F(P) before and after training, but through
  views whose data it replaces, so that nothing is set. A batch of a single prototype is left out;
  kernels have widths 10, 15, 20 and 50; nothing bounds F; the server's gradients are clipped, too.
  Images are shrunk without antialiasing. From the first upload on there is a pair for every class,
  also for one that nobody has uploaded. Clients go through the pairs in passes, as through an
  epoch, shuffled anew in each.
* Clients' gradients, of the model and of h', are each clipped at norm 100 in both variants. The
  paper is silent, its numbers come from code that clips; without it ArcFace's first steps (|z| is
  small, gradients above 1,000) blow up the features of some clients, and the regression then
  diverges.
* A step takes a mini-batch of pairs, as released: an unbiased estimate of the paper's sum over all
  (all_pairs=True). L_MSE is a mean over the H numbers of a latent.
* A pair exists from a class's first upload on.
* V and the first h' come from fixed seeds, known to all: they are not sent, and not counted.
* With dim = C, h is the model's own head, whatever its form; with another K, one linear layer in
  its place.
* The arccos is clamped.
* Images are fitted to the clients' on the server, with antialiasing, and are their luminance for
  clients with grey images.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.core.bounds import Count, NonNegative, Positive, SearchRange, Within, checked, traced
from fedjax_ht.core.federation import Bucket, features, init_variables, logits
from fedjax_ht.core.inputs import image_shape, pixels_of
from fedjax_ht.core.local_training import (
    Batch,
    LocalTraining,
    Loss,
    class_means,
    shuffled,
    sum_by_class,
    train,
)
from fedjax_ht.core.method import Method, Pretrained, PyTree, View
from fedjax_ht.core.round import gather_received
from fedjax_ht.core.server_training import compact
from fedjax_ht.core.wire import Masked
from fedjax_ht.generators import Generator, open_generator
from fedjax_ht.generators.images import synthesise
from fedjax_ht.generators.units import Latents, in_units, into
from fedjax_ht.losses import arcface_loss, cosines, cross_entropy, masked_mean
from fedjax_ht.losses.mmd import BANDWIDTHS
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.alignment import (
    Alignment,
    FeatureTransformer,
    Widths,
    align,
    off_manifold,
)
from fedjax_ht.methods.shared.pair_sources import FIXED, Source, latents_of, noise_images
from fedjax_ht.methods.shared.prototypes import Variant
from fedjax_ht.methods.shared.variants import settled
from fedjax_ht.models.etf import simplex_etf
from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.split import SplitModel

WARN_OUTSIDE = 0.9  # share of F's latents
WARN_REACH = 3  # radii of the ball that holds the valid latents

Transfer = Literal["pairs", "images"]
Median = tuple[Literal["median"]]  # a tuple, so that a command line can give numbers instead


class Form(NamedTuple):
    """The values of a variant, by the names of options that default to None."""

    bandwidths: tuple
    bounded: bool
    antialias: bool


FORMS: Mapping[Variant, Form] = {
    "paper": Form(bandwidths=("median",), bounded=True, antialias=True),
    "released": Form(bandwidths=BANDWIDTHS, bounded=False, antialias=False),
}


class Pairs(NamedTuple):
    """images: Masked float32 [C, H, W, channels] in [-1, 1], a generator's range, in which the
    paper's noise is meant. vectors: Masked float32 [C, latent_dim] in units, or ()."""

    images: Masked
    vectors: Masked | tuple


class Server(NamedTuple):
    """F, and what was made of the newest prototypes.

    Attributes:
      transformer: parameters of F; {} where it is not used.
      centroids: float32 [C, latent_dim], Qbar, in units.
      images: float32 [C, H, W, channels] in [0, 1].
      available: bool [C], the classes that have a pair.
    """

    transformer: PyTree
    centroids: jax.Array
    images: jax.Array
    available: jax.Array


def with_outputs(bucket: Bucket, dim: int) -> Bucket:
    """The bucket with one linear layer of `dim` outputs as its head; as it is if it has that many
    already."""
    if dim == bucket.num_classes:
        return bucket
    return dataclasses.replace(bucket, module=bucket.module.clone(head=Linear(dim)))


def first_projection(feature_dim: int, latent_dim: int) -> PyTree:
    """h' as every round starts with it: {"kernel" [K', H], "bias" [H]}, torch's default, always the
    same."""
    kernel, bias = jax.random.split(jax.random.key(0))
    return {
        "kernel": uniform_fan_in(kernel, (feature_dim, latent_dim), feature_dim),
        "bias": uniform_fan_in(bias, (latent_dim,), feature_dim),
    }


def unit(rows: jax.Array) -> jax.Array:
    """Rows of length 1; zeros stay."""
    return rows * jax.lax.rsqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), 1e-12))


def draw(available: jax.Array, size: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices int32 [size] of random classes among those available, without replacement, and which
    are real."""
    some = compact(available)
    return shuffled(key, some)[:size], jnp.arange(size) < some.count


def draw_in_passes(
    available: jax.Array, size: int, step: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the classes of a client's step (from 0), and which are real, as the released code has
    them.

    All available classes are gone through in a random order, `size` at a step, and then in another;
    a pass's last step has those that are left. `key` is the same in all steps of a round.
    """
    some = compact(available)
    steps = jnp.maximum((some.count + size - 1) // size, 1)
    order = shuffled(jax.random.fold_in(key, step // steps), some)
    position = step % steps * size + jnp.arange(size)
    # Past the end some class is read, and masked.
    return order[jnp.minimum(position, len(order) - 1)], position < some.count


def warn(metrics: dict, bounded: bool = True) -> str | None:
    """Says how far the latents sent are from valid ones, by powers of ten, so that it is not said
    anew every round; or, where they are moved back to valid ones, that nearly all of them had to
    be."""
    passed = [
        bound
        for bound in (WARN_REACH, 10, 100, 1000, 10_000)
        if (metrics.get("reach") or 0.0) > bound
    ]
    if passed:
        return (
            f"latents sent to the clients are more than {passed[-1]} times as far from the mean "
            "of the generator's as "
            "any valid one (metric reach); bounded=True moves them back, and a lower server_lr "
            "may help"
        )
    if bounded and metrics.get("off_manifold", 0.0) > WARN_OUTSIDE:
        return (
            f"more than {WARN_OUTSIDE:.0%} of the latents that F makes lie outside the "
            "generator's valid ones and are "
            "moved back to their edge (metric off_manifold); a lower server_lr may help"
        )
    return None


@checked
def fedktl(
    training: LocalTraining,
    generator: str | Path | Generator = "fashion_mnist_32",
    variant: Variant = "paper",
    latents: Latents = "raw",
    mu: Annotated[NonNegative, SearchRange(1.0, 100.0)] = 50.0,
    mse_weight: NonNegative = 1.0,
    mmd_weight: NonNegative = 1.0,
    dim: Count | None = None,
    server_epochs: Count = 100,
    server_lr: Annotated[Positive, SearchRange(0.001, 0.1)] = 0.01,
    server_batch_size: Count = 100,
    bandwidths: Median | Widths | None = None,
    bounded: bool | None = None,
    scale: Positive = 64.0,
    margin: Annotated[float, Within(0, math.pi)] = 0.5,
    clip_norm: NonNegative = 100.0,
    all_pairs: bool = False,
    antialias: bool | None = None,
    classifier: Literal["etf", "head"] = "etf",
    transfer: Transfer = "pairs",
    source: Source = "prototypes",
) -> Method:
    """FedKTL as a `Method`, see above. None is the variant's value (see `FORMS`).

    Args:
      training: local training.
      generator: a `generators.Generator`, or what `generators.open_generator` takes: a name,
        "module:function", a path.
      variant: see the module's text.
      latents: "raw", as the generator has them, or in units of their "spread", see
        `generators.units`.
      mu: weight of the regression on pairs; 0 is ablation "-L_M" of Table 7.
      mse_weight: lambda; 0 is ablation "-L_MSE".
      mmd_weight: of L_MMD; 0 is ablation "-L_MMD".
      dim: K, dimensions of the ETF; None takes the number of classes.
      server_epochs, server_lr, server_batch_size: E_S, eta_S, B_S of the alignment.
      bandwidths: of the MMD's kernels, or ("median",), see `methods.alignment`.
      bounded: F's range is the ball that holds the valid latents.
      scale, margin: s and m of ArcFace, an angle; 1 and 0 are Table 17's variant.
      clip_norm: of the clients' gradients; 0 clips none.
      all_pairs: every step takes all C pairs instead of as many as the local batch has samples.
      antialias: when images are shrunk to the clients' size.
      classifier: "head" is ablation "-ETF": the model's own head and cross-entropy, prototypes of
        its features.
      transfer: "images" is ablation "-Qbar": no regression; the images join the local samples, with
        their classes.
      source: "labels" is ablation "+CS": no upload and no alignment; C random classes of a
        conditional generator. "valid" and "noise" are controls with fixed pairs, see
        `methods.pair_sources`.
    """
    # the method may be made where a program is traced, see `Method.vary`
    with jax.ensure_compile_time_eval():
        generator = in_units(
            generator if isinstance(generator, Generator) else open_generator(generator), latents
        )
    form = Form(
        **settled(
            variant, {"bandwidths": bandwidths, "bounded": bounded, "antialias": antialias}, FORMS
        )
    )
    released, etf, latent_dim = variant == "released", classifier == "etf", generator.latent_dim
    options = Alignment(
        epochs=server_epochs,
        batch_size=server_batch_size,
        learning_rate=server_lr,
        mmd_weight=mmd_weight,
        mse_weight=mse_weight,
        bandwidths="median" if tuple(form.bandwidths) == ("median",) else form.bandwidths,
        variant=variant,
    )
    transformer = FeatureTransformer(latent_dim)
    if clip_norm:
        each = optax.chain(optax.clip_by_global_norm(clip_norm), training.optimizer)
        parts = {"model": each, "projection": each}
        training = dataclasses.replace(
            training, optimizer=optax.multi_transform(parts, {name: name for name in parts})
        )

    def dim_of(federation_or_bucket) -> int:
        """K, or the width of the features where there is no ETF."""
        if not etf:
            return federation_or_bucket.feature_dim
        return federation_or_bucket.num_classes if dim is None else dim

    def own(bucket: Bucket) -> Bucket:
        return with_outputs(bucket, dim_of(bucket)) if etf else bucket

    def check(federation) -> None:
        for bucket in federation.buckets:
            image_shape(bucket.input_shape, "FedKTL")
        k, classes = dim_of(federation), federation.num_classes
        if etf and k < classes:
            raise ValueError(f"dim is {k}; an ETF of {classes} classes needs at least {classes}")
        if (
            etf
            and k != classes
            and not all(isinstance(b.module, SplitModel) for b in federation.buckets)
        ):
            raise ValueError(
                f"dim is {k}; models that are not a SplitModel keep their {classes} outputs"
            )
        if source == "labels" and (generator.conditional is None or generator.num_labels < classes):
            raise ValueError(
                f"generator {generator.card.name!r} knows {generator.num_labels} classes; "
                "source='labels' needs a "
                f"conditional one with at least {classes}"
            )

    def representation(bucket: Bucket, params, stats, x, mask, train=False, key=None):
        """Features of the base, what prototypes are made of, and the batch statistics."""
        found, stats = features(bucket, params, stats, x, mask, train=train, key=key)
        return found, logits(bucket, params, found) if etf else found, stats

    def scores(bucket: Bucket, params, found, outputs):
        vectors = simplex_etf(bucket.num_classes, dim_of(bucket)) if etf else None
        return cosines(outputs, vectors) if etf else logits(bucket, params, found)

    def classification(values, labels, mask):
        return (
            arcface_loss(values, labels, mask, scale, margin)
            if etf
            else cross_entropy(values, labels, mask)
        )

    def init_client(bucket, ctx):
        return init_variables(own(bucket), ctx.key)

    def init_server(federation, key):
        first, second = jax.random.split(key)
        classes, width = federation.num_classes, dim_of(federation)
        params: PyTree = {}
        if source == "prototypes":
            params = transformer.init(first, jnp.zeros((2, width)), jnp.ones(2, bool))["params"]
        centroids = jax.random.normal(second, (classes, latent_dim))
        images = jnp.zeros((classes, *federation.buckets[0].input_shape))
        return Server(params, centroids, images, jnp.zeros(classes, bool))

    def broadcast(federation, bucket, server, ctx):
        vectors = Masked(server.centroids, server.available) if transfer == "pairs" else ()
        return Pairs(Masked(2 * server.images - 1, server.available), vectors)

    def client_update(bucket, client, downlink, data, ctx):
        bucket, images, vectors = own(bucket), downlink.images, downlink.vectors
        size = bucket.num_classes if all_pairs else min(training.batch_size, bucket.num_classes)
        extra = images.mask.sum() / jnp.maximum(data.splits["train"].count, 1)
        passes_key = jax.random.fold_in(ctx.key, 1)

        def loss_in_passes(params, stats, batch: Batch, key) -> Loss:
            step = stats["step"]
            pairs = draw_in_passes(images.mask, size, step, passes_key)
            result = loss_on(pairs, params, stats["model"], batch, key)
            return result._replace(stats={"model": result.stats, "step": step + 1})

        def loss(params, stats, batch: Batch, key) -> Loss:
            pairs = draw(images.mask, size, jax.random.split(key, 3)[2])
            return loss_on(pairs, params, stats, batch, key)

        def loss_on(pairs, params, stats, batch: Batch, key) -> Loss:
            model_key, pair_key, _ = jax.random.split(key, 3)
            found, outputs, stats = representation(
                bucket, params["model"], stats, batch.x, batch.mask, train=True, key=model_key
            )
            value = classification(
                scores(bucket, params["model"], found, outputs), batch.y, batch.mask
            )
            if not traced(mu) and mu == 0 and transfer == "pairs":
                return Loss(value, stats)
            index, mask = pairs
            pixels = (jnp.where(mask[:, None, None, None], images.values[index], 0) + 1) / 2
            x = pixels_of(data.preprocess, "FedKTL").normalise(pixels)
            found, outputs, stats = representation(
                bucket, params["model"], stats, x, mask, train=True, key=pair_key
            )
            if transfer == "images":
                # One pass over the images is `extra` times as long as one over the client's own
                # samples.
                mixed = classification(scores(bucket, params["model"], found, outputs), index, mask)
                return Loss(value + extra * mixed, stats)
            guess = found @ params["projection"]["kernel"] + params["projection"]["bias"]
            squares = jnp.mean(
                (guess - jnp.where(mask[:, None], vectors.values[index], 0)) ** 2, -1
            )
            return Loss(value + mu * masked_mean(squares, mask), stats)

        params = {
            "model": client["params"],
            "projection": first_projection(bucket.feature_dim, latent_dim),
        }
        # DP-SGD carries no batch statistics on, and so no count of steps: its pairs are drawn anew.
        if released and data.trainer is None:
            start = {"model": client["stats"], "step": jnp.int32(0)}
            result = train(
                training, loss_in_passes, params, start, data, ctx.key, bucket.num_classes
            )
            result = result._replace(stats=result.stats["model"])
        else:
            result = train(
                training, loss, params, client["stats"], data, ctx.key, bucket.num_classes
            )
        client = {"params": result.params["model"], "stats": result.stats}
        return client, uplink(bucket, client, data), {"loss": result.loss}

    def uplink(bucket, client, data):
        if source != "prototypes":
            return ()

        def extract(x, mask):
            outputs = representation(bucket, client["params"], client["stats"], x, mask)[1]
            return unit(outputs) if released else outputs

        sums = sum_by_class(extract, data, bucket.num_classes)
        means = class_means(sums)
        return prototypes.Uplink(Masked(unit(means) if released else means, sums.counts > 0), ())

    @jax.jit
    def aligned(server, received, key, frozen):
        """The server without its images."""
        draw_key, align_key = jax.random.split(key)
        if source != "prototypes":
            centroids = latents_of(source, generator, frozen, draw_key, len(server.centroids))
            centroids = jnp.where(kept(server)[:, None], server.centroids, centroids)
            return server._replace(
                centroids=centroids, available=jnp.ones_like(server.available)
            ), {}
        uploads = prototypes.as_rows(*prototypes.uploaded(gather_received(received)))

        def sample_w(key, n):
            return generator.sample_w(frozen, key, n)

        def free(params, rows, mask):
            return transformer.apply({"params": params}, rows, mask)

        def held(params, rows, mask):
            return into(frozen.ball, free(params, rows, mask))

        params, centroids, metrics = align(
            transform=held if form.bounded else free,
            sample_w=sample_w,
            options=options,
            params=server.transformer,
            centroids=server.centroids,
            uploads=uploads,
            key=align_key,
        )
        available = server.available.at[uploads.labels].max(uploads.valid)
        if released:
            available |= uploads.valid.any()
        unbounded = free(params, uploads.prototypes, uploads.valid)
        metrics |= off_manifold(unbounded, uploads.valid, centroids, available, frozen.ball)
        return Server(params, centroids, server.images, available), metrics

    def kept(server):
        """Pairs that stay for good, bool [C]."""
        return server.available & (source in FIXED)

    def server_update(federation, server, received, ctx):
        new, metrics = aligned(server, received, ctx.key, ctx.pretrained)
        if source == "noise":
            images = noise_images(ctx.key, server.images.shape)
        else:
            images = synthesise(
                generator, ctx.pretrained, new.centroids, server.images.shape[1:], form.antialias
            )
        changed = new.available & ~kept(server)
        return new._replace(
            images=jnp.where(changed[:, None, None, None], images, server.images)
        ), metrics

    def compared(bucket, client, x, mask):
        return representation(own(bucket), client["params"], client["stats"], x, mask)[1]

    def predict(bucket, client, downlink, x, mask):
        bucket = own(bucket)
        found, outputs, _ = representation(bucket, client["params"], client["stats"], x, mask)
        return {classifier: scores(bucket, client["params"], found, outputs)}

    return Method(
        name="fedktl",
        training=training,
        check=check,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        rules=(classifier,),
        view=View(
            features=compared,
            pictures=lambda federation, server: {"sent to the clients": server.images},
            warn=functools.partial(warn, bounded=form.bounded),
        ),
        pretrained=Pretrained(generator.variables, generator.card.trained_on, generator.host),
    )
