"""Models in the papers' form: a feature extractor ("base") of any architecture and a head."""

from typing import Literal

import flax.linen as nn
import jax

from fedjax_ht.core.module_checks import require_linen
from fedjax_ht.models.layers import Linear
from fedjax_ht.ops import adaptive_pool


class SplitModel(nn.Module):
    """A feature extractor and a head, split where different architectures have the same form.

    Any Flax modules work, including your own.

    Attributes:
      base: x [B, H, W, C] -> features [B, K]. It is called as base(x) or, if `stateful`, as
        base(x, train, mask): `train` picks the batch's or the running statistics, `mask` bool [B]
        marks real samples.
      head: features [B, K] -> logits [B, num_classes].
      stateful: True if the base keeps batch statistics, and takes `train` and `mask`.
      feature_dim: width to which the base's features are averaged, see `ops.adaptive_pool`; None
        keeps them.

    Example:
      >>> import flax.linen as nn
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_ht as fl
      >>> class Extractor(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x):
      ...         return nn.relu(nn.Dense(8)(x.reshape(len(x), -1)))
      >>> model = fl.SplitModel(base=Extractor(), head=nn.Dense(10))
      >>> images = jnp.zeros((2, 28, 28, 1))
      >>> variables = model.init(jax.random.key(0), images)
      >>> model.apply(variables, images).shape
      (2, 10)
      >>> model.apply(variables, images, method="features").shape
      (2, 8)
    """

    base: nn.Module
    head: nn.Module
    stateful: bool = False
    feature_dim: int | None = None

    def __post_init__(self):
        require_linen("SplitModel's base", self.base)
        require_linen("SplitModel's head", self.head)
        super().__post_init__()

    def features(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns the features [B, K] of samples x."""
        features = self.base(x, train, mask) if self.stateful else self.base(x)
        return features if self.feature_dim is None else adaptive_pool(features, self.feature_dim)

    def classify(self, features: jax.Array) -> jax.Array:
        """Returns the logits [B, num_classes] of features [B, K]."""
        return self.head(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits [B, num_classes] of samples x, normalised as in evaluation."""
        return self.classify(self.features(x))


Activation = Literal["relu", "tanh"]
HTC4_WIDTHS = ((), (512,), (256,), (128,))  # hidden widths, HtFLlib's HtC4


class DenseHead(nn.Module):
    """Hidden layers as wide as `widths`, then a linear layer: float [B, K] -> [B, num_classes].

    Parameters are "fc1", "fc2", ..., the last one of the output layer, all with torch's default
    initialisation.

    Attributes:
      widths: widths of the hidden layers.
      num_classes: number of classes, the outputs of the last layer.
      activation: the non-linearity after the hidden layers.
      output_relu: True adds a ReLU after the output layer, so that no logit is negative, as in
        HtFLlib's released HtC4 heads.
    """

    widths: tuple[int, ...]
    num_classes: int
    activation: Activation = "relu"
    output_relu: bool = False

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        activate = {"relu": nn.relu, "tanh": nn.tanh}[self.activation]
        for i, width in enumerate(self.widths, 1):
            features = activate(Linear(width, name=f"fc{i}")(features))
        logits = Linear(self.num_classes, name=f"fc{len(self.widths) + 1}")(features)
        if self.output_relu:
            return nn.relu(logits)
        return logits


def vit_head(num_classes: int, width: int = 768) -> DenseHead:
    """Builds Linear(K, width)-Tanh-Linear(width, num_classes), HtFLlib's head of a ViT."""
    return DenseHead((width,), num_classes, "tanh")


def htc4_heads(num_classes: int, output_relu: bool = False) -> tuple[DenseHead, ...]:
    """Builds HtFLlib's HtC4: K-C, K-512-C, K-256-C and K-128-C with ReLU between the layers.

    Client i takes head i mod 4. `output_relu`: see `DenseHead`.
    """
    heads = []
    for widths in HTC4_WIDTHS:
        heads.append(DenseHead(widths, num_classes, output_relu=output_relu))
    return tuple(heads)
