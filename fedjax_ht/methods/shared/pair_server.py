"""FedKTL's server: class prototypes become latents of a generator, and latents become images.

train F on the uploaded prototypes P (`shared.alignment`);  Qbar_c = mean of F(P_c);
I_c = G_s(Qbar_c)

A pair's source may be another one, as an ablation or a control of the transfer:

labels: latents of random classes of a conditional generator, drawn anew in every round ("+CS" of
        FedKTL's Table 7)
valid:  one valid latent per class, drawn in the first round, and its image: pairs that belong
        together, of no client's data
noise:  noise for image and latent, drawn in the first round: pairs that do not belong together

Nothing is then uploaded and F is not used; clients train on the pairs as on others.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.trees import Array, HostArray, PyTree
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.alignment import Alignment, FeatureTransformer, align, off_manifold
from fedjax_ht.methods.shared.units import SAMPLES, Weights, into
from fedjax_ht.models.generator import Generator

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601
BATCH = 10  # images synthesised at once


def fit(images: HostArray, shape: tuple[int, ...], antialias: bool = True) -> jax.Array:
    """Scales images to a shape bilinearly and cuts out their centre.

    The shorter side is scaled to the target's; a grey target gets the luminance.

    Args:
      images: images of a generator, float [n, h, w, 3] in [0, 1].
      shape: the shape (H, W, C) to scale to, with C 1 or 3.
      antialias: False takes single pixels when shrinking, as torchvision 0.15, which the authors of
        FedKTL use, did.
    """
    height, width, channels = shape
    n, h, w, _ = images.shape
    scale = max(height / h, width / w)
    size = (max(round(h * scale), height), max(round(w * scale), width))
    if size != (h, w):
        images = jax.image.resize(images, (n, *size, 3), "bilinear", antialias=antialias)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    images = images[:, top : top + height, left : left + width]
    if channels == 1:
        images = images @ jnp.array(LUMINANCE, images.dtype)[:, None]
    return jnp.clip(images, 0, 1).astype(jnp.float32)


def synthesise(
    generator: Generator,
    variables,
    latents: jax.Array,
    shape: tuple[int, ...],
    antialias: bool,
) -> jax.Array:
    """Makes images of latents, fitted to a federation's shape.

    Args:
      generator: the protocol's functions.
      variables: variables of the generator.
      latents: float [n, H].
      shape, antialias: the images' shape and how they are shrunk to it, as for `fit`.

    Returns:
      float32 [n, *shape] in [0, 1].
    """
    if generator.host:
        images = generator.synthesize(*jax.device_get((variables, latents)))
        return fit(jnp.asarray(images), shape, antialias)

    def synthesise_one(latent):
        return fit(generator.synthesize(variables, latent[None]), shape, antialias)[0]

    # In batches, so that memory does not grow with n.
    return lax.map(synthesise_one, latents, batch_size=BATCH)


Source = Literal["prototypes", "labels", "valid", "noise"]
FIXED = ("valid", "noise")  # drawn once

# (server, uplinks by bucket, context) -> (server, metrics)
Update = Callable[["Server", dict[str, Received], Context], tuple["Server", Metrics]]


class Server(NamedTuple):
    """F, and the pairs made of the newest prototypes.

    Attributes:
      transformer: parameters of F; {} where it is not used.
      centroids: float32 [C, latent_dim], Qbar, in the generator's units.
      images: float32 [C, H, W, channels] in [0, 1].
      available: bool [C], the classes that have a pair.
    """

    transformer: PyTree
    centroids: jax.Array
    images: jax.Array
    available: jax.Array


class PairServer(NamedTuple):
    """Options of the server.

    Attributes:
      generator: the generator that makes images of latents.
      alignment: options of the training of F.
      source: the kind of vectors that latents and images are made of.
      bounded: True if F's range is the ball that holds the valid latents.
      antialias: antialiasing when images are shrunk to the clients' size.
    """

    generator: Generator
    alignment: Alignment
    source: Source
    bounded: bool
    antialias: bool

    @property
    def released(self) -> bool:
        """True for the authors' loop."""
        return self.alignment.variant == "released"

    @property
    def transformer(self) -> FeatureTransformer:
        """F, as a Flax module."""
        return FeatureTransformer(self.generator.latent_dim)


def init_pairs(setup: PairServer, federation: Federation, width: int, key: jax.Array) -> Server:
    """Makes the first server: F and Qbar are random, and no class has a pair.

    Args:
      setup: the server's options.
      federation: the federation, whose number of classes and image shape count.
      width: width K of a prototype.
      key: the key of the draws.
    """
    first, second = jax.random.split(key)
    classes = federation.num_classes
    params: PyTree = {}
    if setup.source == "prototypes":
        rows = jnp.zeros((2, width)), jnp.ones(2, bool)
        params = setup.transformer.init(first, *rows)["params"]
    return Server(
        transformer=params,
        centroids=jax.random.normal(second, (classes, setup.generator.latent_dim)),
        images=jnp.zeros((classes, *federation.buckets[0].input_shape)),
        available=jnp.zeros(classes, bool),
    )


def pair_update(setup: PairServer) -> Update:
    """Makes the server's round: new latents, and their images."""
    new_latents = _latents_of_source
    if setup.source == "prototypes":
        new_latents = _latents_of_prototypes
    # Compiled by itself, and made once: a generator that is host code keeps the server's step as a
    # whole from being compiled.
    new_latents = jax.jit(functools.partial(new_latents, setup))

    def update(server: Server, received: dict[str, Received], ctx: Context):
        new, metrics = new_latents(server, received, ctx.key, ctx.pretrained)
        if setup.source == "noise":
            images = noise_images(ctx.key, server.images.shape)
        else:
            form = server.images.shape[1:], setup.antialias
            images = synthesise(setup.generator, ctx.pretrained, new.centroids, *form)
        changed = new.available & ~_kept(setup, server)
        images = jnp.where(changed[:, None, None, None], images, server.images)
        return new._replace(images=images), metrics

    return update


def latents_of(
    source: Source, generator: Generator, frozen: PyTree, key: jax.Array, num_classes: int
) -> jax.Array:
    """Draws one latent per class.

    Args:
      source: the source of latents, "labels", "valid" or "noise"; those of "noise" are normal, with
        the mean and the deviations of valid latents.
      generator: the generator that draws valid latents.
      frozen: the generator's variables.
      key: the key of the draws.
      num_classes: number of classes, C.

    Returns:
      float32 [C, H].
    """
    if source == "labels":
        assert generator.conditional is not None  # the method has refused other generators
        classes = jax.random.permutation(jax.random.key(0), generator.num_labels)[:num_classes]
        return generator.conditional(frozen, key, classes)
    if source == "valid":
        return generator.sample_w(frozen, key, num_classes)
    w = generator.sample_w(frozen, key, SAMPLES)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (num_classes, w.shape[1]))
    return w.mean(0) + w.std(0) * noise


def noise_images(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws images of independent numbers, uniform in [0, 1): float32 of this shape."""
    return jax.random.uniform(jax.random.fold_in(key, 2), shape)


def _latents_of_source(
    setup: PairServer, server: Server, received, key: jax.Array, weights: Weights
) -> tuple[Server, Metrics]:
    draw_key, _ = jax.random.split(key)
    classes = len(server.centroids)
    centroids = latents_of(setup.source, setup.generator, weights, draw_key, classes)
    centroids = jnp.where(_kept(setup, server)[:, None], server.centroids, centroids)
    available = jnp.ones_like(server.available)
    return server._replace(centroids=centroids, available=available), {}


def _latents_of_prototypes(
    setup: PairServer, server: Server, received, key: jax.Array, weights: Weights
) -> tuple[Server, Metrics]:
    _, align_key = jax.random.split(key)
    uploads = prototypes.as_rows(*prototypes.uploaded(gather_received(received)))

    def sample_w(key, n):
        return setup.generator.sample_w(weights, key, n)

    def unbounded(params, rows, mask) -> Array:
        latents: PyTree = setup.transformer.apply({"params": params}, rows, mask)
        return latents

    def inside(params, rows, mask) -> Array:
        return into(weights.ball, unbounded(params, rows, mask))

    params, centroids, metrics = align(
        transform=inside if setup.bounded else unbounded,
        sample_w=sample_w,
        options=setup.alignment,
        params=server.transformer,
        centroids=server.centroids,
        uploads=uploads,
        key=align_key,
    )
    # A maximum, since several uploads of a class write to its entry.
    available = server.available.at[uploads.labels].max(uploads.valid)
    if setup.released:  # a pair for every class, from the first upload on
        available |= uploads.valid.any()
    latents = unbounded(params, uploads.prototypes, uploads.valid)
    metrics |= off_manifold(latents, uploads.valid, centroids, available, weights.ball)
    return server._replace(transformer=params, centroids=centroids, available=available), metrics


def _kept(setup: PairServer, server: Server) -> jax.Array:
    """Marks the pairs that are never replaced, bool [C]."""
    return server.available & (setup.source in FIXED)
