"""The small CNNs of the papers: the 4-layer CNN of HtFLlib, and CNN-1..5 of FedSSA and FedRAL."""

from typing import NamedTuple

import flax.linen as nn
import jax

from fedjax_ht.check.options import checked
from fedjax_ht.models.layers import Conv, Initialisation, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class ConvLayer(NamedTuple):
    """A convolution of `ConvFeatures`, followed by a ReLU.

    Attributes:
      channels: number of output channels.
      size: side of the kernel in pixels, in both axes.
      padding: zero padding in pixels, in both axes.
      pooled: True if a max-pooling 2x2 follows the ReLU.
    """

    channels: int
    size: int = 5
    padding: int = 0
    pooled: bool = True


class ConvFeatures(nn.Module):
    """A plain convolutional network up to its last hidden layer.

    float [B, H, W, C] -> [B, widths[-1]], or the flattened map if there are no `widths`. Without
    convolutions it is a perceptron, of samples of any shape.

    Attributes:
      convs: the convolutions, each a `ConvLayer` or a tuple of its four fields.
      widths: widths of the hidden layers, each linear with a ReLU.
      initialisation: distribution of the initial weights, see `models.layers.Initialisation`.
      dropout: rates after the last convolution and after the last hidden layer. Dropout needs a
        "dropout" key.
    """

    convs: tuple[ConvLayer | tuple[int, int, int, bool], ...]
    widths: tuple[int, ...]
    initialisation: Initialisation = "torch"
    dropout: tuple[float, float] = (0.0, 0.0)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # Training gives a key, scoring none.
        constant = not self.has_rng("dropout")
        behind_convs, behind_widths = self.dropout
        for i, (channels, size, padding, pooled) in enumerate(self.convs, 1):
            conv = Conv(
                channels,
                size,
                padding=padding,
                initialisation=self.initialisation,
                name=f"conv{i}",
            )
            x = conv(x)
            if pooled:
                # A ReLU of the maxima is the maximum of ReLUs, at a quarter of the work.
                x = max_pool(x, 2, 2)
            x = nn.relu(x)
        x = nn.Dropout(behind_convs, deterministic=constant)(x).reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths, 1):
            x = nn.relu(Linear(width, self.initialisation, name=f"fc{i}")(x))
        return nn.Dropout(behind_widths, deterministic=constant)(x)


@checked
def cnn4(
    num_classes: int, feature_dim: int = 512, initialisation: Initialisation = "torch"
) -> SplitModel:
    """Builds the "4-layer CNN" (HtFLlib's FedAvgCNN), whose features are its hidden layer.

    Args:
      num_classes: number of classes, the outputs of the linear head.
      feature_dim: K, the width of the features.
      initialisation: distribution of the initial weights, see `models.layers.Initialisation`.
    """
    convs = ConvLayer(32), ConvLayer(64)
    return SplitModel(
        ConvFeatures(convs, (feature_dim,), initialisation), Linear(num_classes, initialisation)
    )


@checked
def mlp(
    num_classes: int, widths: tuple[int, ...] = (64, 32), initialisation: Initialisation = "torch"
) -> SplitModel:
    """Builds a perceptron whose features are its last hidden layer.

    Args:
      num_classes: number of classes, the outputs of the linear head.
      widths: widths of the hidden layers, each with a ReLU; the last one is K.
      initialisation: distribution of the initial weights, see `models.layers.Initialisation`.

    Returns:
      The model; it takes any float array, which it flattens.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_ht as fl
      >>> model = fl.mlp(num_classes=10, widths=(64, 32))
      >>> images = jnp.zeros((2, 28, 28, 1))
      >>> variables = model.init(jax.random.key(0), images)
      >>> model.apply(variables, images, method="features").shape
      (2, 32)
    """
    return SplitModel(
        ConvFeatures((), tuple(widths), initialisation), Linear(num_classes, initialisation)
    )


CNN5_COLOUR = {  # FedSSA Table 3, FedRAL Table 2: conv1, conv2, FC1
    "cnn1": (16, 32, 2000),
    "cnn2": (16, 16, 2000),
    "cnn3": (16, 32, 1000),
    "cnn4": (16, 32, 800),
    "cnn5": (16, 32, 500),
}
# FedRAL, Fashion-MNIST: FC1
CNN5_GREY = {"cnn1": 300, "cnn2": 200, "cnn3": 150, "cnn4": 100, "cnn5": 50}


def cnn5_group(
    num_classes: int,
    channels: int,
    feature_dim: int | None = None,
    initialisation: Initialisation = "torch",
) -> dict[str, SplitModel]:
    """Builds CNN-1..5 of FedSSA (Table 3) and FedRAL (Table 2).

    Args:
      num_classes: number of classes, the outputs of the linear heads.
      channels: 3 gives the networks for colour images, 1 FedRAL's for grey ones.
      feature_dim: K, the width of the features; None takes 500 for colour and 50 for grey images.
      initialisation: distribution of the initial weights, see `models.layers.Initialisation`.
    """
    group = {}
    for name, fc1 in CNN5_GREY.items():
        conv1, conv2, width = 20, 20, feature_dim or 50
        if channels == 3:
            conv1, conv2, fc1 = CNN5_COLOUR[name]
            width = feature_dim or 500
        convs = ConvLayer(conv1), ConvLayer(conv2)
        base = ConvFeatures(convs, (fc1, width), initialisation)
        group[name] = SplitModel(base, Linear(num_classes, initialisation))
    return group
