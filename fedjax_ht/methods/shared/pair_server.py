"""FedKTL's server: class prototypes become latents of a generator, and latents become images.

train F on the uploaded prototypes P;  Qbar_c = mean of F(P_c);  I_c = G_s(Qbar_c)

F turns prototypes into valid latents (Eqs. 2 and 3), by

L = w_MMD * L_MMD(F(P), valid latents) + w_MSE * L_MSE(F(P), their class means)

Pairs may also come from other sources, as ablations or controls of the transfer:

labels: latents of random classes of a conditional generator, drawn anew in every round ("+CS" of
        FedKTL's Table 7)
valid:  one valid latent per class, drawn in the first round, and its image: matching pairs, made
        without clients' data
noise:  noise for image and latent, drawn in the first round: pairs that do not match

With these sources nothing is uploaded and F is not used; clients train on the pairs as usual.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.check.options import Count, NonNegative, Positive, Within, check_fields
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch, class_means, class_sums
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.method import ServerUpdate
from fedjax_ht.core.server_training import RowTraining, compact, train_on_rows
from fedjax_ht.core.trees import Array, HostArray, PyTree
from fedjax_ht.losses import kernel_means, masked_mean, mmd_loss
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.mutual import by_part
from fedjax_ht.methods.shared.prototypes import Uploads
from fedjax_ht.methods.shared.units import SAMPLES, Ball, Weights, into
from fedjax_ht.methods.shared.variants import Variant
from fedjax_ht.models.generator import Generator
from fedjax_ht.models.layers import Linear, Norm, uniform_fan_in
from fedjax_ht.ops import squared_distance

CLIP_NORM = 100.0  # from the released code
# bandwidths with "median", in units of half the median squared distance
MEDIAN_SHARES = (0.25, 0.5, 1.0, 2.0)
WARN_OUTSIDE = 0.9  # share of F's latents
WARN_REACH = 3  # radii of the ball that holds the valid latents

Median = tuple[Literal["median"]]  # a tuple, so that a command line can give numbers instead
Widths = Annotated[tuple[Positive, ...], Within(1)]
SampleW = Callable[[jax.Array, int], jax.Array]  # (key, n) -> valid latents [n, H]
# F: (params, prototypes [M, K], mask [M]) -> [M, H]
Transform = Callable[[PyTree, jax.Array, jax.Array], jax.Array]
Source = Literal["prototypes", "labels", "valid", "noise"]


class FeatureTransformer(nn.Module):
    """F: Linear-BatchNorm-ReLU-Linear, as wide as its input.

    Maps prototypes float [M, K] to latents float [M, H]. The norm uses the statistics of the rows
    under `mask` bool [M], and no running ones. Those would lag behind a first layer that changes at
    every step, by many standard deviations, because prototypes differ so little. The first layer
    has no bias: batch norm subtracts it, so its gradient is rounding noise, and Adam would step
    along that. The released code has both; neither its messages nor its training depend on them.
    """

    latent_dim: int

    @nn.compact
    def __call__(self, prototypes: jax.Array, mask: jax.Array) -> jax.Array:
        width = prototypes.shape[-1]
        x = prototypes @ self.param("fc1", uniform_fan_in, (width, width), width)
        x = Norm("static_batch", name="norm")(x, True, mask)
        return Linear(self.latent_dim, name="fc2")(nn.relu(x))


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Options of the server: the training of F in a round, and the source of pairs.

    Attributes:
      epochs: number E_S of passes over the uploaded prototypes.
      batch_size: number B_S of prototypes per step.
      learning_rate: learning rate eta_S of Adam.
      mmd_weight, mse_weight: weights of L_MMD and of L_MSE; the latter is the paper's lambda.
      bandwidths: bandwidths of the RBF kernels, or ("median",): 1/4, 1/2, 1 and 2 times half the
        median squared distance of valid latents.
      variant: "paper" or "released", see `methods.fedktl`.
      source: the source of latents and images, see the module's docstring.
      bounded: True if F's range is the ball that holds the valid latents.
      antialias: antialiasing when images are shrunk to the clients' size.
    """

    epochs: Count = 100
    batch_size: Count = 100
    learning_rate: Positive = 0.01
    mmd_weight: NonNegative = 1.0
    mse_weight: NonNegative = 1.0
    bandwidths: Median | Widths = ("median",)
    variant: Variant = "paper"
    source: Source = "prototypes"
    bounded: bool = True
    antialias: bool = True

    def __post_init__(self):
        check_fields(self)


def mean_latents(
    transform: Transform, params: PyTree, uploads: Uploads, old: jax.Array
) -> jax.Array:
    """Computes Qbar: the mean of F(P) by class, float [C, H]; `old` for classes without upload."""
    latents = transform(params, uploads.prototypes, uploads.valid)
    sums = class_sums(latents, Batch(latents, uploads.labels, uploads.valid), len(old))
    return jnp.where(sums.counts[:, None] > 0, class_means(sums), old)


def class_spread(latents: jax.Array, uploads: Uploads, num_classes: int) -> jax.Array:
    """Computes L_MSE (FedKTL Eq. 2), the mean over classes of their latents' variance.

    Args:
      latents: float [M, H], F of the uploads.
      uploads: the uploads of these latents; their classes and `valid` are read.
      num_classes: number of classes, C.

    Returns:
      Scalar: the mean square between a class's latents and their mean, averaged over classes.
    """
    batch = Batch(latents, uploads.labels, uploads.valid)
    means = class_means(class_sums(latents, batch, num_classes))
    squares = jnp.mean((latents - means[uploads.labels]) ** 2, -1)
    by_class = class_sums(squares[:, None], batch, num_classes)
    return masked_mean(class_means(by_class)[:, 0], by_class.counts > 0)


def choose_bandwidths(options: Alignment, sample_w: SampleW, key: jax.Array) -> jax.Array:
    """Returns the bandwidths of the kernels, float32 [A]."""
    if options.bandwidths[0] != "median":
        return jnp.array(options.bandwidths)
    valid_latents = sample_w(key, max(options.batch_size, 2))
    return jnp.array(MEDIAN_SHARES) * median_distance2(valid_latents) / 2


def median_distance2(rows: jax.Array) -> jax.Array:
    """Returns the median squared distance between two rows float [n, H]; 0 for a single row."""
    pairs = jnp.triu_indices(len(rows), 1)
    return jnp.median(squared_distance(rows, rows)[pairs]) if len(rows) > 1 else jnp.float32(0)


def align(
    transform: Transform,
    sample_w: SampleW,
    options: Alignment,
    *,
    params: PyTree,
    centroids: jax.Array,
    uploads: Uploads,
    key: jax.Array,
) -> tuple[PyTree, jax.Array, dict[str, jax.Array]]:
    """Trains F for one round, as one compiled loop.

    In the paper, L_MSE uses the means of F(P) over all uploads at every step, with gradients
    through both sides. L_MMD uses a batch, and Qbar are the means after training. In the released
    code, both use the batch. A trainable table, kept between rounds, replaces the means and is
    Qbar.

    Args:
      transform: the transformer F, (params, prototypes, mask) -> latents.
      sample_w: a function that draws valid latents, new ones at every step.
      options: the options of the training, see `Alignment`.
      params: parameters of F.
      centroids: float [C, H], Qbar of the previous round.
      uploads: the prototypes of the round.
      key: the key for shuffles and draws.

    Returns:
      params, Qbar, and metrics: those of `diagnose` after the training, and "mmd_before".
    """
    train_key, width_key, before_key, after_key = jax.random.split(key, 4)
    bandwidths = choose_bandwidths(options, sample_w, width_key)

    def of_all(params, batch, mask, key):
        latents = transform(params["transformer"], uploads.prototypes, uploads.valid)
        return combine(latents[batch], class_spread(latents, uploads, len(centroids)), mask, key)

    def of_batch(params, batch, mask, key):
        latents = transform(params["transformer"], uploads.prototypes[batch], mask)
        squares = jnp.mean((latents - params["centroids"][uploads.labels[batch]]) ** 2, -1)
        return combine(latents, masked_mean(squares, mask), mask, key)

    def combine(latents, apart, mask, key):
        valid_latents = sample_w(key, options.batch_size)
        discrepancy = mmd_loss(latents, valid_latents, mask, bandwidths)
        return options.mmd_weight * discrepancy + options.mse_weight * apart

    def diagnose(params, key):
        """Measures F on the first `batch_size` uploads.

        Returns:
          Metrics, float32 scalars: "mmd" and "mse", both losses unweighted; "kernel_1", ..., the
          mean of each kernel between F(P) and valid latents (all near 0: the alignment has no
          gradient); "distance2_to_valid" and "distance2_of_valid", medians of the squared distances
          between these and among valid latents.
        """
        latents = transform(params, uploads.prototypes, uploads.valid)
        split = compact(uploads.valid)
        position = jnp.arange(options.batch_size)
        # Positions past the end read some upload, which is masked.
        chosen = split.indices[jnp.minimum(position, len(latents) - 1)]
        some, mask = latents[chosen], position < split.count
        w = sample_w(key, options.batch_size)
        kernels = kernel_means(some, w, mask / jnp.maximum(mask.sum(), 1), bandwidths)
        across = jnp.where(mask[:, None], squared_distance(some, w), jnp.nan)
        metrics = {
            "mmd": mmd_loss(some, w, mask, bandwidths),
            "mse": class_spread(latents, uploads, len(centroids)),
            "distance2_to_valid": jnp.nan_to_num(jnp.nanmedian(across)),
            "distance2_of_valid": median_distance2(w),
        }
        for i, mean in enumerate(kernels, 1):
            metrics[f"kernel_{i}"] = mean
        return metrics

    trained, optimizer, loss = {"transformer": params}, optax.adam(options.learning_rate), of_all
    released = options.variant == "released"
    if released:
        each = optax.chain(optax.clip_by_global_norm(CLIP_NORM), optimizer)
        trained, loss = trained | {"centroids": centroids}, of_batch
        optimizer = by_part(dict.fromkeys(trained, each))
    # Indices of the uploads: of_all reads all of them at every step.
    rows = jnp.arange(len(uploads.valid))
    recipe = RowTraining(optimizer, options.epochs, options.batch_size, drop_single=released)
    before = diagnose(params, before_key)
    trained, _ = train_on_rows(recipe, loss, trained, rows, uploads.valid, key=train_key)
    params = trained["transformer"]
    after = diagnose(params, after_key)
    if released:
        centroids = trained["centroids"]
    else:
        centroids = mean_latents(transform, params, uploads, centroids)
    return params, centroids, {"mmd_before": before["mmd"]} | after


def off_manifold(
    latents: jax.Array, valid: jax.Array, sent: jax.Array, available: jax.Array, ball: Ball
) -> dict:
    """Measures how far latents lie from valid ones, in radii of the ball of valid latents.

    Args:
      latents: float [M, H], F(P) before they are moved into the ball.
      valid: bool [M], the real rows of `latents`.
      sent: float [C, H], the latents that clients get.
      available: bool [C], the classes that have a latent.
      ball: the ball that holds the generator's valid latents.

    Returns:
      "off_manifold", the share of F(P) outside the ball; "reach", the largest distance from its
      centre among the latents sent. 0 where there are none.
    """

    def distance(rows):
        return jnp.linalg.norm(rows - ball.centre, axis=-1) / ball.radius

    outside = jnp.sum((distance(latents) > 1) & valid) / jnp.maximum(valid.sum(), 1)
    return {"off_manifold": outside, "reach": jnp.max(jnp.where(available, distance(sent), 0))}


def warn(metrics: dict, bounded: bool = True) -> str | None:
    """Warns of latents far from valid ones; a `View.warn`.

    The distance is rounded down to a few values, so that the message is the same in most rounds.
    With `bounded`, a second warning says that nearly all latents had to be moved back.
    """
    reach = metrics.get("reach") or 0.0
    passed = [bound for bound in (WARN_REACH, 10, 100, 1000, 10_000) if reach > bound]
    if passed:
        return (
            f"latents sent to the clients are more than {passed[-1]} times as far from the "
            "generator's mean as any valid one (metric reach); bounded=True moves them back, "
            "and a lower server_lr may help"
        )
    if bounded and metrics.get("off_manifold", 0.0) > WARN_OUTSIDE:
        return (
            f"more than {WARN_OUTSIDE:.0%} of F's latents are outside the generator's valid "
            "range and are moved back to its edge (metric off_manifold); a lower server_lr may "
            "help"
        )
    return None


LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601
BATCH = 10  # images synthesised at once


def fit(images: HostArray, shape: tuple[int, ...], antialias: bool = True) -> jax.Array:
    """Scales images to a shape bilinearly and cuts out their centre.

    Images are scaled to cover the target; a grey target gets the luminance.

    Args:
      images: images of a generator, float [n, h, w, 3] in [0, 1].
      shape: the shape (H, W, C) to scale to, with C 1 or 3.
      antialias: False takes single pixels when shrinking, as did torchvision 0.15, which FedKTL's
        authors use.
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
    """Generates images from latents, fitted to a federation's shape.

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


FIXED = ("valid", "noise")  # drawn once


class Server(NamedTuple):
    """F, and the pairs made from the latest prototypes.

    Attributes:
      transformer: parameters of F; {} if F is not used.
      centroids: float32 [C, latent_dim], Qbar, in the generator's units.
      images: float32 [C, H, W, channels] in [0, 1].
      available: bool [C], the classes that have a pair.
    """

    transformer: PyTree
    centroids: jax.Array
    images: jax.Array
    available: jax.Array


def init_pairs(
    generator: Generator, options: Alignment, federation: Federation, *, width: int, key: jax.Array
) -> Server:
    """Initialises the server: F and Qbar are random, and no class has a pair.

    Args:
      generator: the generator that makes images of latents.
      options: the server's options.
      federation: the federation; its number of classes and image shape are read.
      width: width K of a prototype.
      key: the key of the draws.
    """
    first, second = jax.random.split(key)
    classes = federation.num_classes
    params: PyTree = {}
    if options.source == "prototypes":
        rows = jnp.zeros((2, width)), jnp.ones(2, bool)
        params = FeatureTransformer(generator.latent_dim).init(first, *rows)["params"]
    return Server(
        transformer=params,
        centroids=jax.random.normal(second, (classes, generator.latent_dim)),
        images=jnp.zeros((classes, *federation.buckets[0].input_shape)),
        available=jnp.zeros(classes, bool),
    )


def pair_update(generator: Generator, options: Alignment) -> ServerUpdate:
    """Makes the server's step: new latents, and their images.

    Args:
      generator: the generator that makes images of latents.
      options: the server's options.
    """
    new_latents = _latents_of_source
    if options.source == "prototypes":
        new_latents = _latents_of_prototypes
    # Compiled separately, and made once: with a generator on the host, the server's step cannot be
    # compiled as a whole.
    new_latents = jax.jit(functools.partial(new_latents, generator, options))

    def update(federation, server: Server, received: dict[str, Received], ctx: Context):
        new, metrics = new_latents(server, received, ctx.key, ctx.pretrained)
        if options.source == "noise":
            # Independent numbers, uniform in [0, 1).
            images = jax.random.uniform(jax.random.fold_in(ctx.key, 2), server.images.shape)
        else:
            form = server.images.shape[1:], options.antialias
            images = synthesise(generator, ctx.pretrained, new.centroids, *form)
        changed = new.available & ~_kept(options, server)
        images = jnp.where(changed[:, None, None, None], images, server.images)
        return new._replace(images=images), metrics

    return update


def latents_of(
    source: Source, generator: Generator, frozen: PyTree, key: jax.Array, num_classes: int
) -> jax.Array:
    """Draws one latent per class.

    Args:
      source: the source of latents, "labels", "valid" or "noise"; "noise" is normal, with the mean
        and the standard deviations of valid latents.
      generator: the generator that draws valid latents.
      frozen: the generator's variables.
      key: the key of the draws.
      num_classes: number of classes, C.

    Returns:
      float32 [C, H].
    """
    if source == "labels":
        assert generator.conditional is not None  # the method has rejected other generators
        classes = jax.random.permutation(jax.random.key(0), generator.num_labels)[:num_classes]
        return generator.conditional(frozen, key, classes)
    if source == "valid":
        return generator.sample_w(frozen, key, num_classes)
    w = generator.sample_w(frozen, key, SAMPLES)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (num_classes, w.shape[1]))
    return w.mean(0) + w.std(0) * noise


def _latents_of_source(
    generator: Generator,
    options: Alignment,
    server: Server,
    received: dict[str, Received],
    key: jax.Array,
    weights: Weights,
) -> tuple[Server, Metrics]:
    draw_key, _ = jax.random.split(key)
    classes = len(server.centroids)
    centroids = latents_of(options.source, generator, weights, draw_key, classes)
    centroids = jnp.where(_kept(options, server)[:, None], server.centroids, centroids)
    available = jnp.ones_like(server.available)
    return server._replace(centroids=centroids, available=available), {}


def _latents_of_prototypes(
    generator: Generator,
    options: Alignment,
    server: Server,
    received: dict[str, Received],
    key: jax.Array,
    weights: Weights,
) -> tuple[Server, Metrics]:
    _, align_key = jax.random.split(key)
    uploads = prototypes.as_rows(*prototypes.uploaded(gather_received(received)))
    transformer = FeatureTransformer(generator.latent_dim)

    def sample_w(key, n):
        return generator.sample_w(weights, key, n)

    def unbounded(params, rows, mask) -> Array:
        latents: PyTree = transformer.apply({"params": params}, rows, mask)
        return latents

    def inside(params, rows, mask) -> Array:
        return into(weights.ball, unbounded(params, rows, mask))

    params, centroids, metrics = align(
        transform=inside if options.bounded else unbounded,
        sample_w=sample_w,
        options=options,
        params=server.transformer,
        centroids=server.centroids,
        uploads=uploads,
        key=align_key,
    )
    # A maximum, since several uploads of a class write to its entry.
    available = server.available.at[uploads.labels].max(uploads.valid)
    if options.variant == "released":  # a pair for every class, from the first upload on
        available |= uploads.valid.any()
    latents = unbounded(params, uploads.prototypes, uploads.valid)
    metrics |= off_manifold(latents, uploads.valid, centroids, available, weights.ball)
    return server._replace(transformer=params, centroids=centroids, available=available), metrics


def _kept(options: Alignment, server: Server) -> jax.Array:
    """Marks the pairs that are never replaced, bool [C]."""
    return server.available & (options.source in FIXED)
