"""Heads of more than one linear layer: HtFLlib's for vision transformers, and its HtC4."""

from typing import Literal

import flax.linen as nn
import jax

from fedjax_ht.models.layers import Linear

Activation = Literal["relu", "tanh"]
HTC4_WIDTHS = ((), (512,), (256,), (128,))  # hidden widths, HtFLlib's HtC4


class DenseHead(nn.Module):
    """Hidden layers as wide as `widths`, then a linear layer: float [B, K] -> [B, num_classes].

    Parameters "fc1", "fc2", ..., the last one being the output layer, all with torch's default
    initialisation.

    Attributes:
      widths: widths of the hidden layers.
      num_classes: number of classes, the outputs of the last layer.
      activation: the non-linearity behind the hidden layers.
      output_relu: True puts a ReLU behind the output layer, too, so that no logit is negative:
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
