"""FedKTL's client: training plus a regression on one pair of an image and a latent per class.

    per batch:  L = classification(x, y) + mu * mean ||h'(f(I_c)) - Qbar_c||^2 over a mini-batch of
                the C pairs (I_c, Qbar_c)

h' is linear. All clients start every round with the same h', and discard it afterwards. As an
ablation ("images"), clients classify the images like local samples, without the regression.

The classifier uses angles to the fixed vectors of an ETF or, as an ablation, the model's head:

etf:   z = h(f(x)), the score of class c is cos_c = z . v_c / |z|, V = (v_c) a fixed simplex ETF
       known to all; the loss is ArcFace's (FedKTL Eq. 1)
head:  the score is the head's logit, the loss the cross-entropy; prototypes are of f(x)
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_ht.check.options import traced
from fedjax_ht.core.batches import Batch, shuffled
from fedjax_ht.core.bucket import Bucket, features, logits
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import pixels_of
from fedjax_ht.core.local_training import LocalTraining, Loss, TrainingResult, train
from fedjax_ht.core.server_training import compact
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Masked
from fedjax_ht.losses import arcface_loss, cosines, cross_entropy, masked_mean
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.models.layers import Linear, uniform_fan_in
from fedjax_ht.models.split import SplitModel


def simplex_etf(num_classes: int, dim: int) -> np.ndarray:
    """Returns sqrt(C / (C - 1)) U (I - 1 1^T / C) with orthonormal columns U (FedKTL).

    U is drawn from a fixed seed, so that it need not be sent to clients.

    Args:
      num_classes: number of classes, C, at least 2.
      dim: length of a vector, at least C.

    Returns:
      float32 [dim, C]: columns of length 1, with cosine -1 / (C - 1) between any two.
    """
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, num_classes)))
    centred = np.eye(num_classes) - 1 / num_classes
    return (np.sqrt(num_classes / (num_classes - 1)) * basis @ centred).astype(np.float32)


class Classifier(NamedTuple):
    """A classifier's options.

    Attributes:
      etf: True for the ETF; False for the model's own head.
      dim: dimensions K of the ETF; None takes the number of classes.
      scale, margin: scale s and margin m of ArcFace; the margin is an angle in radians.
    """

    etf: bool = True
    dim: int | None = None
    scale: float = 64.0
    margin: float = 0.5


class Representation(NamedTuple):
    """A model's view of a batch.

    Attributes:
      features: float [B, K'], of the feature extractor; the regression on pairs reads them.
      outputs: float [B, K], the rows averaged into prototypes: z, or the features without an ETF.
      stats: the batch statistics after the batch.
    """

    features: jax.Array
    outputs: jax.Array
    stats: PyTree


def dimensions(classifier: Classifier, place: Federation | Bucket) -> int:
    """Returns the dimensions of `Representation.outputs` in a federation or a bucket."""
    if not classifier.etf:
        return place.feature_dim
    return place.num_classes if classifier.dim is None else classifier.dim


def bucket_of(classifier: Classifier, bucket: Bucket) -> Bucket:
    """Returns the bucket with the head that the classifier needs."""
    dim = dimensions(classifier, bucket)
    if not classifier.etf or dim == bucket.num_classes:
        return bucket
    return dataclasses.replace(bucket, module=bucket.module.clone(head=Linear(dim)))


def check_dimensions(classifier: Classifier, federation: Federation) -> None:
    """Raises a ValueError if models cannot have the outputs of the ETF."""
    dim, classes = dimensions(classifier, federation), federation.num_classes
    if not classifier.etf:
        return
    if classes < 2:
        raise ValueError("an ETF needs at least 2 classes; the federation has 1")
    if dim < classes:
        raise ValueError(f"dim is {dim}; an ETF of {classes} classes needs at least {classes}")
    replaceable = all(isinstance(b.module, SplitModel) for b in federation.buckets)
    if dim != classes and not replaceable:
        raise ValueError(
            f"dim is {dim}; models that are not a SplitModel keep their {classes} outputs"
        )


def represent(
    classifier: Classifier,
    bucket: Bucket,
    params: PyTree,
    *,
    stats: PyTree,
    x: jax.Array,
    mask: jax.Array,
    train: bool = False,
    key: jax.Array | None = None,
) -> Representation:
    """Runs a model on a batch; arguments as for `core.bucket.features`."""
    rows, stats = features(bucket, params, stats, x, mask, train=train, key=key)
    outputs = logits(bucket, params, rows) if classifier.etf else rows
    return Representation(rows, outputs, stats)


def scores(
    classifier: Classifier, bucket: Bucket, params: PyTree, representation: Representation
) -> jax.Array:
    """Computes a batch's scores, float [B, num_classes]: cosines, or logits without an ETF."""
    if not classifier.etf:
        return logits(bucket, params, representation.features)
    vectors = simplex_etf(bucket.num_classes, dimensions(classifier, bucket))
    return cosines(representation.outputs, vectors)


def classification_loss(
    classifier: Classifier, values: jax.Array, labels: jax.Array, mask: jax.Array
) -> jax.Array:
    """Computes a batch's loss, a scalar, from its `scores`, labels int [B] and mask bool [B]."""
    if not classifier.etf:
        return cross_entropy(values, labels, mask)
    return arcface_loss(values, labels, mask, classifier.scale, classifier.margin)


Transfer = Literal["pairs", "images"]


class Pairs(NamedTuple):
    """A client's downlink.

    Attributes:
      images: Masked float32 [C, H, W, channels] in [-1, 1], a generator's range, to which the
        paper's noise refers.
      vectors: Masked float32 [C, latent_dim] in the generator's units; () without the regression.
    """

    images: Masked
    vectors: PyTree


def first_projection(feature_dim: int, latent_dim: int) -> PyTree:
    """Returns h' at the start of a round: {"kernel" [K', H], "bias" [H]}, by torch's default.

    The key is fixed, so that all clients have the same h' without sending it.
    """
    kernel, bias = jax.random.split(jax.random.key(0))
    return {
        "kernel": uniform_fan_in(kernel, (feature_dim, latent_dim), feature_dim),
        "bias": uniform_fan_in(bias, (latent_dim,), feature_dim),
    }


def draw(available: jax.Array, size: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws classes among those available, without replacement.

    Args:
      available: bool [C], True for the classes to draw from.
      size: number of classes to draw.
      key: the key of the draw.

    Returns:
      int32 [size], the classes, and bool [size], the real entries: not all if fewer are available.
    """
    some = compact(available)
    return shuffled(key, some)[:size], jnp.arange(size) < some.count


def draw_in_passes(
    available: jax.Array, size: int, step: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Chooses a step's classes as the released code does: in passes over the available ones.

    A pass visits the classes in a random order, `size` per step; its last step takes the rest. Each
    pass has its own order.

    Args:
      available: bool [C], True for the classes to draw from.
      size: number of classes per step.
      step: int32 scalar, from 0 in each round.
      key: the key of the passes, the same in all steps of a round.

    Returns:
      As `draw`.
    """
    some = compact(available)
    steps = jnp.maximum((some.count + size - 1) // size, 1)
    order = shuffled(jax.random.fold_in(key, step // steps), some)
    position = step % steps * size + jnp.arange(size)
    # Positions past the end read some class, which is masked.
    return order[jnp.minimum(position, len(order) - 1)], position < some.count


def clip_each(training: LocalTraining, clip_norm: float) -> LocalTraining:
    """Clips the gradients of the model and of h' separately at `clip_norm`; 0 does not clip."""
    if not clip_norm:
        return training
    each = optax.chain(optax.clip_by_global_norm(clip_norm), training.optimizer)
    return in_parts(training, {"model": each, "projection": each})


def pair_training(
    training: LocalTraining,
    classifier: Classifier,
    *,
    mu: float,
    transfer: Transfer,
    all_pairs: bool,
    in_passes: bool,
    latent_dim: int,
) -> Callable[..., tuple[PyTree, TrainingResult]]:
    """Makes a client's training on its samples and on the pairs.

    Args:
      training: the recipe of local training, for the parameters {"model", "projection"}.
      classifier: the method's classifier.
      mu: weight of the regression.
      transfer: the transferred knowledge, "pairs" or, as an ablation, "images".
      all_pairs: True uses all C pairs at every step instead of as many as a batch has samples.
      in_passes: True takes a step's pairs from passes over all pairs, as released; False draws them
        anew at each step.
      latent_dim: H, the length of a latent.

    Returns:
      (bucket, client, pairs, data, ctx) -> (client, result): the bucket has the classifier's head
      (`bucket_of`), the pairs are those of the downlink, and the others as for `client_update`.
    """

    def train_on_pairs(bucket, client, pairs: Pairs, data, ctx):
        images, vectors = pairs.images, pairs.vectors
        size = bucket.num_classes if all_pairs else min(training.batch_size, bucket.num_classes)
        extra = images.mask.sum() / jnp.maximum(data.splits["train"].count, 1)
        passes_key = jax.random.fold_in(ctx.key, 1)

        def loss_in_passes(params, stats, batch: Batch, key) -> Loss:
            step = stats["step"]
            chosen = draw_in_passes(images.mask, size, step, passes_key)
            result = loss_on(chosen, params, stats["model"], batch, key)
            return result._replace(stats={"model": result.stats, "step": step + 1})

        def loss(params, stats, batch: Batch, key) -> Loss:
            chosen = draw(images.mask, size, jax.random.split(key, 3)[2])
            return loss_on(chosen, params, stats, batch, key)

        def loss_on(chosen, params, stats, batch: Batch, key) -> Loss:
            model, (model_key, pair_key, _) = params["model"], jax.random.split(key, 3)

            def classify(representation, labels, mask):
                values = scores(classifier, bucket, model, representation)
                return classification_loss(classifier, values, labels, mask)

            represented = functools.partial(represent, classifier, bucket, model, train=True)
            samples = represented(stats=stats, x=batch.x, mask=batch.mask, key=model_key)
            value = classify(samples, batch.y, batch.mask)
            # A static mu of 0 drops the pairs from the program.
            if not traced(mu) and mu == 0 and transfer == "pairs":
                return Loss(value, samples.stats)
            index, mask = chosen
            # Images and vectors of classes without a pair may be NaN: they are replaced when read.
            pixels = (jnp.where(mask[:, None, None, None], images.values[index], 0) + 1) / 2
            x = pixels_of(data.preprocess, "FedKTL").normalise(pixels)
            shown = represented(stats=samples.stats, x=x, mask=mask, key=pair_key)
            if transfer == "images":
                # Weighted as if the images joined the samples: `extra` is images per sample.
                return Loss(value + extra * classify(shown, index, mask), shown.stats)
            projection = params["projection"]
            guess = shown.features @ projection["kernel"] + projection["bias"]
            target = jnp.where(mask[:, None], vectors.values[index], 0)
            squares = jnp.mean((guess - target) ** 2, -1)
            return Loss(value + mu * masked_mean(squares, mask), shown.stats)

        projection = first_projection(bucket.feature_dim, latent_dim)
        params = {"model": client["params"], "projection": projection}
        stats, loss_fn = client["stats"], loss
        # DP-SGD carries no statistics from step to step, so no step count: pairs are drawn anew.
        counted = in_passes and data.trainer is None
        if counted:
            stats, loss_fn = {"model": stats, "step": jnp.int32(0)}, loss_in_passes
        result = train(training, loss_fn, params, stats, data, key=ctx.key)
        if counted:
            result = result._replace(stats=result.stats["model"])
        return {"params": result.params["model"], "stats": result.stats}, result

    return train_on_pairs
