"""FedKTL's server: a feature transformer F that turns prototypes into valid latents of a generator
(FedKTL, Eqs. 2 and 3).

L = w_MMD * L_MMD(F(P), valid latents) + w_MSE * L_MSE(F(P), their class means)
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fedjax_ht.core.bounds import Count, NonNegative, Positive, Within, check_fields
from fedjax_ht.core.local_training import Batch, class_means, class_sums
from fedjax_ht.core.method import PyTree
from fedjax_ht.core.server_training import compact, train_on_rows
from fedjax_ht.generators.units import Ball
from fedjax_ht.losses import kernel_means, masked_mean, mmd_loss
from fedjax_ht.methods.shared.prototypes import Uploads, Variant
from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.norm import Norm
from fedjax_ht.ops import squared_distance

CLIP_NORM = 100.0  # of the released code
# bandwidths of "median", in halves of the median squared distance
MEDIAN_SHARES = (0.25, 0.5, 1.0, 2.0)

Widths = Annotated[tuple[Positive, ...], Within(1)]
SampleW = Callable[[jax.Array, int], jax.Array]  # (key, n) -> valid latents [n, H]
# F: (params, prototypes [M, K], mask [M]) -> [M, H]
Transform = Callable[[PyTree, jax.Array, jax.Array], jax.Array]


class FeatureTransformer(nn.Module):
    """Linear-BatchNorm-ReLU-Linear, as wide as its input: prototypes float [M, K] -> latents [M,
    H].

    The norm takes the statistics of the rows it is given, by `mask` bool [M], and keeps none:
    running ones lag behind a first layer that moves at every step, and prototypes spread so little
    that the lag is many deviations. The first layer has no bias: batch norm subtracts it, its
    gradient is rounding, and Adam takes steps of that. The released code has both, and nothing that
    it sends or trains on depends on them.
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
    """How F is trained in a round: E_S epochs of batches of B_S prototypes, by Adam at eta_S.

    Attributes:
      mmd_weight, mse_weight: of L_MMD and of L_MSE; the latter is the paper's lambda.
      bandwidths: of the RBF kernels, or "median": 1/4, 1/2, 1 and 2 times half the median squared
        distance of valid latents.
      variant: see `methods.fedktl`.
    """

    epochs: Count = 100
    batch_size: Count = 100
    learning_rate: Positive = 0.01
    mmd_weight: NonNegative = 1.0
    mse_weight: NonNegative = 1.0
    bandwidths: Literal["median"] | Widths = "median"
    variant: Variant = "paper"

    def __post_init__(self):
        check_fields(self)


def mean_latents(
    transform: Transform, params: PyTree, uploads: Uploads, old: jax.Array
) -> jax.Array:
    """Mean of F(P) of every class; classes without upload keep `old`. float [C, H]."""
    latents = transform(params, uploads.prototypes, uploads.valid)
    sums = class_sums(latents, Batch(latents, uploads.labels, uploads.valid), len(old))
    return jnp.where(sums.counts[:, None] > 0, class_means(sums), old)


def class_spread(latents: jax.Array, uploads: Uploads, num_classes: int) -> jax.Array:
    """L_MSE (FedKTL Eq. 2): mean square between a class's latents and their mean, averaged by
    class."""
    sums = class_sums(latents, Batch(latents, uploads.labels, uploads.valid), num_classes)
    squares = jnp.mean((latents - class_means(sums)[uploads.labels]) ** 2, -1)
    by_class = class_sums(
        squares[:, None], Batch(latents, uploads.labels, uploads.valid), num_classes
    )
    return masked_mean(class_means(by_class)[:, 0], by_class.counts > 0)


def choose_bandwidths(options: Alignment, sample_w: SampleW, key: jax.Array) -> jax.Array:
    """float32 [A]."""
    if options.bandwidths != "median":
        return jnp.array(options.bandwidths)
    return (
        jnp.array(MEDIAN_SHARES) * median_distance2(sample_w(key, max(options.batch_size, 2))) / 2
    )


def median_distance2(rows: jax.Array) -> jax.Array:
    """Median squared distance of any two rows; 0 of a single row."""
    pairs = jnp.triu_indices(len(rows), 1)
    return jnp.median(squared_distance(rows, rows)[pairs]) if len(rows) > 1 else jnp.float32(0)


def align(
    transform: Transform,
    sample_w: SampleW,
    options: Alignment,
    params: PyTree,
    centroids: jax.Array,
    uploads: Uploads,
    key: jax.Array,
) -> tuple[PyTree, jax.Array, dict[str, jax.Array]]:
    """One round's training of F, as one compiled loop.

    The paper's L_MSE takes the means of F(P) over all uploads, with the gradient through both
    sides, at every step; L_MMD a batch of them; Qbar are the means afterwards. Released: both take
    the batch, and a trainable table, which goes on from round to round, stands for the means and is
    Qbar.

    Args:
      transform, params: F, and what of it is trained.
      sample_w: draws valid latents, anew at every step.
      options: see `Alignment`.
      centroids: float [C, H], Qbar of the round before.
      uploads: what arrived.
      key: folds into shuffles and draws.

    Returns:
      params, Qbar, and what `diagnose` says before and after.
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
        return (
            options.mmd_weight * mmd_loss(latents, valid_latents, mask, bandwidths)
            + options.mse_weight * apart
        )

    trained, optimizer, loss = {"transformer": params}, optax.adam(options.learning_rate), of_all
    released = options.variant == "released"
    if released:
        each = optax.chain(optax.clip_by_global_norm(CLIP_NORM), optimizer)
        trained, loss = trained | {"centroids": centroids}, of_batch
        optimizer = optax.multi_transform(
            {name: each for name in trained}, {name: name for name in trained}
        )
    rows, size = jnp.arange(len(uploads.valid)), options.batch_size
    before = diagnose(
        transform, params, sample_w, bandwidths, uploads, size, before_key, len(centroids)
    )
    trained, _ = train_on_rows(
        optimizer,
        loss,
        trained,
        rows,
        uploads.valid,
        train_key,
        options.epochs,
        size,
        drop_single=released,
    )
    params = trained["transformer"]
    after = diagnose(
        transform, params, sample_w, bandwidths, uploads, size, after_key, len(centroids)
    )
    centroids = (
        trained["centroids"] if released else mean_latents(transform, params, uploads, centroids)
    )
    return params, centroids, {"mmd_before": before["mmd"]} | after


def diagnose(
    transform, params, sample_w, bandwidths, uploads, batch_size, key, num_classes
) -> dict:
    """Where F stands, on the first `batch_size` uploads: both losses unweighted, the mean of each
    kernel between F(P) and valid latents ("kernel_1", ...; all near 0: the alignment has no
    gradient), and medians of the squared distances between those and among valid latents."""
    latents = transform(params, uploads.prototypes, uploads.valid)
    split = compact(uploads.valid)
    position = jnp.arange(batch_size)  # past the end some upload is read, and masked
    some, mask = (
        latents[split.indices[jnp.minimum(position, len(latents) - 1)]],
        position < split.count,
    )
    w = sample_w(key, batch_size)
    kernels = kernel_means(some, w, mask / jnp.maximum(mask.sum(), 1), bandwidths)
    across = jnp.where(mask[:, None], squared_distance(some, w), jnp.nan)
    return {
        "mmd": mmd_loss(some, w, mask, bandwidths),
        "mse": class_spread(latents, uploads, num_classes),
        **{f"kernel_{i}": mean for i, mean in enumerate(kernels, 1)},
        "distance2_to_valid": jnp.nan_to_num(jnp.nanmedian(across)),
        "distance2_of_valid": median_distance2(w),
    }


def off_manifold(
    latents: jax.Array, valid: jax.Array, sent: jax.Array, available: jax.Array, ball: Ball
) -> dict:
    """How far latents are from those that the generator knows, in radii of the ball that holds the
    valid ones.

    Args:
      latents: float [M, H], F(P) before anything moves them into the ball; valid: bool [M].
      sent: float [C, H], what clients get; available: bool [C].
      ball: of the generator.

    Returns:
      "off_manifold", the share of F(P) outside the ball; "reach", the largest distance from its
      centre of what is sent. 0 where there is nothing.
    """

    def distance(rows):
        return jnp.linalg.norm(rows - ball.centre, axis=-1) / ball.radius

    outside = jnp.sum((distance(latents) > 1) & valid) / jnp.maximum(valid.sum(), 1)
    return {"off_manifold": outside, "reach": jnp.max(jnp.where(available, distance(sent), 0))}
