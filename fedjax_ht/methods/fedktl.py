"""FedKTL (Zhang et al., CVPR 2024): the server turns prototypes into images of a pre-trained generator, with vectors
that clients regress them to.

    client:  z = h(f(x)), cos_c = z . v_c / |z|, V = (v_c) a fixed ETF; per batch
             L = ArcFace(cos, y) + mu * mean ||h'(f(I_c)) - Qbar_c||^2 over a mini-batch of the C pairs (I_c, Qbar_c),
             h' being linear, the same at the start of every client's round, and thrown away after it
             upload P_c = mean of z, for own classes
    server:  train F, E_S epochs: L_MMD(F(P), valid latents) + lambda * L_MSE(F(P), class means of F(P))
             Qbar_c = mean of F(P_c), I_c = G_s(Qbar_c); send the pairs
    predict: the class of the largest cosine

Settled here:
* Latents are in units of the generator's own spread (`generators.units`), on both sides and on the wire, so that
  lambda, mu, kernels and F's steps mean the same for every generator; they are multiplied back to make images.
* F's batch norm takes the statistics of the prototypes at hand, also when it makes Qbar. Running ones, as released, lag
  behind by many deviations: with one client Qbar then left the valid latents by orders of magnitude.
* F's range is the ball about W's mean that holds a thousand valid latents: what F puts outside is moved to its surface.
  The paper has no such bound (bounded=False): far away all kernels vanish, nothing pulls back, and Adam goes on.
* The paper names no widths of the RBF kernels. They follow the median distance of valid latents (`bandwidths`). The
  released code's 10, 15, 20 and 50 are far below it (about 720), see almost nothing, and align nothing here.
* variant="released" is HtFLlib: features are made unit vectors before and after averaging; L_MSE is against a
  trainable table, over the batch, so that classes of many clients weigh more; the server's gradients are clipped, too.
* Clients' gradients, of the model and of h', are each clipped at norm 100 in both variants. The paper is silent, its
  numbers come from code that clips; without it ArcFace's first steps (|z| is small, gradients above 1,000) blow up the
  features of some clients, and the regression then diverges.
* A step takes a mini-batch of pairs, as released: an unbiased estimate of the paper's sum over all (all_pairs=True).
  L_MSE is a mean over the H numbers of a latent.
* A pair exists from a class's first upload on. The released code sends images of random latents before.
* V and the first h' come from fixed seeds, known to all: they are not sent, and not counted.
* With dim = C, h is the model's own head, whatever its form; with another K, one linear layer in its place.
* The arccos is clamped.
* Images are fitted to the clients' on the server, with antialiasing (antialias=False: the authors' torchvision had
  none), and are their luminance for clients with grey images.
"""

import dataclasses
import math
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
from fedjax_ht.generators.units import in_units, into
from fedjax_ht.losses import arcface_loss, cosines, cross_entropy, masked_mean
from fedjax_ht.methods import prototypes
from fedjax_ht.methods.alignment import Alignment, FeatureTransformer, Widths, align, mean_latents, off_manifold
from fedjax_ht.methods.pair_sources import FIXED, Source, latents_of, noise_images
from fedjax_ht.methods.prototypes import Variant
from fedjax_ht.models.etf import simplex_etf
from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.split import SplitModel

WARN_OUTSIDE = 0.9  # share of F's latents
WARN_REACH = 3  # radii of the ball that holds the valid latents

Transfer = Literal["pairs", "images"]


class Pairs(NamedTuple):
    """images: Masked float32 [C, H, W, channels] in [-1, 1], a generator's range, in which the paper's noise is meant.
    vectors: Masked float32 [C, latent_dim] in units, or ()."""

    images: Masked
    vectors: Masked | tuple


class Server(NamedTuple):
    """F, and what was made of the newest prototypes.

    Attributes:
      transformer: parameters of F; {} where it is not used.
      centroids: float32 [C, latent_dim], Qbar, in units.
      images: float32 [C, H, W, channels] in [0, 1].
      available: bool [C], the classes that have had a prototype.
    """

    transformer: PyTree
    centroids: jax.Array
    images: jax.Array
    available: jax.Array


def with_outputs(bucket: Bucket, dim: int) -> Bucket:
    """The bucket with one linear layer of `dim` outputs as its head; as it is if it has that many already."""
    if dim == bucket.num_classes:
        return bucket
    return dataclasses.replace(bucket, module=bucket.module.clone(head=Linear(dim)))


def first_projection(feature_dim: int, latent_dim: int) -> PyTree:
    """h' as every round starts with it: {"kernel" [K', H], "bias" [H]}, torch's default, always the same."""
    kernel, bias = jax.random.split(jax.random.key(0))
    return {
        "kernel": uniform_fan_in(kernel, (feature_dim, latent_dim), feature_dim),
        "bias": uniform_fan_in(bias, (latent_dim,), feature_dim),
    }


def unit(rows: jax.Array) -> jax.Array:
    """Rows of length 1; zeros stay."""
    return rows * jax.lax.rsqrt(jnp.maximum(jnp.sum(rows * rows, -1, keepdims=True), 1e-12))


def draw(available: jax.Array, size: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices int32 [size] of random classes among those available, without replacement, and which are real."""
    some = compact(available)
    return shuffled(key, some)[:size], jnp.arange(size) < some.count


def warn(metrics: dict) -> str | None:
    """Says how far the latents sent are from valid ones, by powers of ten, so that it is not said anew every round; or,
    where they are moved back to valid ones, that nearly all of them had to be."""
    passed = [bound for bound in (WARN_REACH, 10, 100, 1000, 10_000) if (metrics.get("reach") or 0.0) > bound]
    if passed:
        return (
            f"latents sent to the clients are more than {passed[-1]} times as far from the mean of the generator's as "
            "any valid one (metric reach); bounded=True moves them back, and a lower server_lr may help"
        )
    if metrics.get("off_manifold", 0.0) > WARN_OUTSIDE:
        return (
            f"more than {WARN_OUTSIDE:.0%} of the latents that F makes lie outside the generator's valid ones and are "
            "moved back to their edge (metric off_manifold); a lower server_lr may help"
        )
    return None


@checked
def fedktl(
    training: LocalTraining,
    generator: str | Path | Generator = "fashion_mnist_32",
    variant: Variant = "paper",
    mu: Annotated[NonNegative, SearchRange(1.0, 100.0)] = 50.0,
    mse_weight: NonNegative = 1.0,
    mmd_weight: NonNegative = 1.0,
    dim: Count | None = None,
    server_epochs: Count = 100,
    server_lr: Annotated[Positive, SearchRange(0.001, 0.1)] = 0.01,
    server_batch_size: Count = 100,
    bandwidths: tuple[Literal["median"]] | Literal["median"] | Widths = ("median",),
    bounded: bool = True,
    scale: Positive = 64.0,
    margin: Annotated[float, Within(0, math.pi)] = 0.5,
    clip_norm: NonNegative = 100.0,
    all_pairs: bool = False,
    antialias: bool = True,
    classifier: Literal["etf", "head"] = "etf",
    transfer: Transfer = "pairs",
    source: Source = "prototypes",
) -> Method:
    """FedKTL as a `Method`, see above.

    Args:
      training: local training.
      generator: a `generators.Generator`, or what `generators.open_generator` takes: a name, "module:function",
        a path.
      variant: see the module's text.
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
      classifier: "head" is ablation "-ETF": the model's own head and cross-entropy, prototypes of its features.
      transfer: "images" is ablation "-Qbar": no regression; the images join the local samples, with their classes.
      source: "labels" is ablation "+CS": no upload and no alignment; C random classes of a conditional generator.
        "valid" and "noise" are controls with fixed pairs, see `methods.pair_sources`.
    """
    with jax.ensure_compile_time_eval():  # the method may be made where a program is traced, see `Method.vary`
        generator = in_units(generator if isinstance(generator, Generator) else open_generator(generator))
    if tuple(bandwidths) == ("median",):  # in a tuple, so that a command line can give numbers instead
        bandwidths = "median"
    latent_dim, etf = generator.latent_dim, classifier == "etf"
    options = Alignment(server_epochs, server_batch_size, server_lr, mmd_weight, mse_weight, bandwidths, variant)
    transformer = FeatureTransformer(latent_dim)
    if clip_norm:
        each = optax.chain(optax.clip_by_global_norm(clip_norm), training.optimizer)
        parts = {"model": each, "projection": each}
        training = dataclasses.replace(training, optimizer=optax.multi_transform(parts, {name: name for name in parts}))

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
        if etf and k != classes and not all(isinstance(b.module, SplitModel) for b in federation.buckets):
            raise ValueError(f"dim is {k}; models that are not a SplitModel keep their {classes} outputs")
        if source == "labels" and (generator.conditional is None or generator.num_labels < classes):
            raise ValueError(
                f"generator {generator.card.name!r} knows {generator.num_labels} classes; source='labels' needs a "
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
        return arcface_loss(values, labels, mask, scale, margin) if etf else cross_entropy(values, labels, mask)

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

        def loss(params, stats, batch: Batch, key) -> Loss:
            model_key, pair_key, draw_key = jax.random.split(key, 3)
            found, outputs, stats = representation(
                bucket, params["model"], stats, batch.x, batch.mask, train=True, key=model_key
            )
            value = classification(scores(bucket, params["model"], found, outputs), batch.y, batch.mask)
            if not traced(mu) and mu == 0 and transfer == "pairs":
                return Loss(value, stats)
            index, mask = draw(images.mask, size, draw_key)
            pixels = (jnp.where(mask[:, None, None, None], images.values[index], 0) + 1) / 2
            x = pixels_of(data.preprocess, "FedKTL").normalise(pixels)
            found, outputs, stats = representation(bucket, params["model"], stats, x, mask, train=True, key=pair_key)
            if transfer == "images":
                # One pass over the images is `extra` times as long as one over the client's own samples.
                mixed = classification(scores(bucket, params["model"], found, outputs), index, mask)
                return Loss(value + extra * mixed, stats)
            guess = found @ params["projection"]["kernel"] + params["projection"]["bias"]
            squares = jnp.mean((guess - jnp.where(mask[:, None], vectors.values[index], 0)) ** 2, -1)
            return Loss(value + mu * masked_mean(squares, mask), stats)

        params = {"model": client["params"], "projection": first_projection(bucket.feature_dim, latent_dim)}
        result = train(training, loss, params, client["stats"], data, ctx.key, bucket.num_classes)
        client = {"params": result.params["model"], "stats": result.stats}
        return client, uplink(bucket, client, data), {"loss": result.loss}

    def uplink(bucket, client, data):
        if source != "prototypes":
            return ()

        def extract(x, mask):
            outputs = representation(bucket, client["params"], client["stats"], x, mask)[1]
            return unit(outputs) if variant == "released" else outputs

        sums = sum_by_class(extract, data, bucket.num_classes)
        means = class_means(sums)
        return prototypes.Uplink(Masked(unit(means) if variant == "released" else means, sums.counts > 0), ())

    @jax.jit
    def latents(server, received, key, frozen):
        """The server without its images."""
        draw_key, align_key = jax.random.split(key)
        if source != "prototypes":
            centroids = latents_of(source, generator, frozen, draw_key, len(server.centroids))
            centroids = jnp.where(kept(server)[:, None], server.centroids, centroids)
            return server._replace(centroids=centroids, available=jnp.ones_like(server.available)), {}
        uploads = prototypes.as_rows(*prototypes.uploaded(gather_received(received)))
        sample_w = lambda key, n: generator.sample_w(frozen, key, n)  # noqa: E731
        free = lambda params, rows, mask: transformer.apply({"params": params}, rows, mask)  # noqa: E731
        held = lambda params, rows, mask: into(frozen.ball, free(params, rows, mask))  # noqa: E731
        transform = held if bounded else free
        centroids = mean_latents(transform, server.transformer, uploads, server.centroids)
        params, metrics = align(transform, sample_w, options, server.transformer, centroids, uploads, align_key)
        centroids = mean_latents(transform, params, uploads, server.centroids)
        available = server.available.at[uploads.labels].max(uploads.valid)
        raw = free(params, uploads.prototypes, uploads.valid)
        metrics |= off_manifold(raw, uploads.valid, centroids, available, frozen.ball)
        return Server(params, centroids, server.images, available), metrics

    def kept(server):
        """Pairs that stay for good, bool [C]."""
        return server.available & (source in FIXED)

    def server_update(federation, server, received, ctx):
        new, metrics = latents(server, received, ctx.key, ctx.pretrained)
        if source == "noise":
            images = noise_images(ctx.key, server.images.shape)
        else:
            images = synthesise(generator, ctx.pretrained, new.centroids, server.images.shape[1:], antialias)
        changed = new.available & ~kept(server)
        return new._replace(images=jnp.where(changed[:, None, None, None], images, server.images)), metrics

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
            warn=warn,
        ),
        pretrained=Pretrained(generator.variables, generator.card.trained_on, generator.host),
    )
