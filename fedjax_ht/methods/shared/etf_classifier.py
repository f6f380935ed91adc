"""FedKTL's classifier: angles to the fixed vectors of an ETF, or by ablation the model's head.

etf:   z = h(f(x)), the score of class c is cos_c = z . v_c / |z|, V = (v_c) a simplex ETF that
       all know; the loss is ArcFace's (FedKTL Eq. 1)
head:  the score is the head's logit, the loss the cross-entropy; prototypes are of f(x)
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.bucket import Bucket, features, logits
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.trees import PyTree
from fedjax_ht.losses import arcface_loss, cosines, cross_entropy
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel


def simplex_etf(num_classes: int, dim: int) -> np.ndarray:
    """Returns sqrt(C / (C - 1)) U (I - 1 1^T / C) with orthonormal columns U (FedKTL).

    U is always the same, drawn from a fixed seed: the clients need not be sent it.

    Args:
      num_classes: number of classes, C.
      dim: numbers of a vector.

    Returns:
      float32 [dim, C]: columns of length 1, any two of which have the cosine -1 / (C - 1).

    Raises:
      ValueError: dim is below num_classes, or there are fewer than two classes.
    """
    if not 2 <= num_classes <= dim:
        raise ValueError(
            f"an ETF of {num_classes} classes needs at least 2 classes and as many dimensions, "
            f"got {dim}"
        )
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
      outputs: float [B, K], the rows that prototypes are means of: z, or the features where there
        is no ETF.
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


def with_outputs(bucket: Bucket, dim: int) -> Bucket:
    """Gives a bucket's models a linear head of `dim` outputs, if theirs has another number."""
    if dim == bucket.num_classes:
        return bucket
    return dataclasses.replace(bucket, module=bucket.module.clone(head=Linear(dim)))


def bucket_of(classifier: Classifier, bucket: Bucket) -> Bucket:
    """Returns the bucket with the head that the classifier needs."""
    return with_outputs(bucket, dimensions(classifier, bucket)) if classifier.etf else bucket


def check_dimensions(classifier: Classifier, federation: Federation) -> None:
    """Raises a ValueError where models cannot have the outputs of the ETF."""
    dim, classes = dimensions(classifier, federation), federation.num_classes
    if not classifier.etf:
        return
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
    """Runs a model on a batch; arguments as of `core.bucket.features`."""
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
