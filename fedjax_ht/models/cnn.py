"""The small CNNs of the papers: the 4-layer CNN of HtFLlib, and CNN-1..5 of FedSSA and FedRAL."""

import flax.linen as nn
import jax

from fedjax_ht.models.layers import Conv, Initialisation, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class ConvFeatures(nn.Module):
    """[conv 5x5, ReLU, max-pool 2x2] per entry of `channels`, then [linear, ReLU] per entry of
    `widths`."""

    channels: tuple[int, ...]
    widths: tuple[int, ...]
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, channels in enumerate(self.channels, 1):
            x = nn.relu(
                max_pool(
                    Conv(channels, 5, initialisation=self.initialisation, name=f"conv{i}")(x), 2, 2
                )
            )
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths, 1):
            x = nn.relu(Linear(width, self.initialisation, name=f"fc{i}")(x))
        return x


class DenseFeatures(nn.Module):
    """Flattens, then [linear, ReLU] per entry of `widths`."""

    widths: tuple[int, ...]
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths, 1):
            x = nn.relu(Linear(width, self.initialisation, name=f"fc{i}")(x))
        return x


def cnn4(
    num_classes: int, feature_dim: int = 512, initialisation: Initialisation = "torch"
) -> SplitModel:
    """The "4-layer CNN" (HtFLlib's FedAvgCNN) for any input of 28 to 64 pixels; the features are
    its FC layer."""
    return SplitModel(
        ConvFeatures((32, 64), (feature_dim,), initialisation), Linear(num_classes, initialisation)
    )


def mlp(
    num_classes: int, widths: tuple[int, ...] = (64, 32), initialisation: Initialisation = "torch"
) -> SplitModel:
    """A perceptron whose last hidden width is the feature width."""
    return SplitModel(
        DenseFeatures(tuple(widths), initialisation), Linear(num_classes, initialisation)
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
    """CNN-1..5: the colour ones of FedSSA and FedRAL (K = 500), or FedRAL's for grey images (K =
    50)."""
    if channels == 3:
        shapes = {
            name: ((c1, c2), (fc1, feature_dim or 500))
            for name, (c1, c2, fc1) in CNN5_COLOUR.items()
        }
    else:
        shapes = {name: ((20, 20), (fc1, feature_dim or 50)) for name, fc1 in CNN5_GREY.items()}
    return {
        name: SplitModel(
            ConvFeatures(convs, widths, initialisation), Linear(num_classes, initialisation)
        )
        for name, (convs, widths) in shapes.items()
    }
