"""Plain convolutional networks in Flax, from their description in `protocols`."""

import flax.linen as nn
import jax

from benchmarks.peers.protocols import Network
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class Features(nn.Module):
    """A network up to its last hidden layer.

    Attributes:
      network: its layers.
      dropout: rates behind the convolutions and behind the hidden linear layers.
    """

    network: Network
    dropout: tuple[float, float] = (0.0, 0.0)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # Training gives a key, scoring none.
        constant = not self.has_rng("dropout")
        for i, (channels, kernel, padding, pooled) in enumerate(self.network.convs):
            x = Conv(channels, kernel, padding=padding, name=f"conv{i}")(x)
            x = nn.relu(max_pool(x, 2, 2) if pooled else x)
        x = nn.Dropout(self.dropout[0], deterministic=constant)(x).reshape(x.shape[0], -1)
        for i, width in enumerate(self.network.widths):
            x = nn.relu(Linear(width, name=f"fc{i}")(x))
        return nn.Dropout(self.dropout[1], deterministic=constant)(x)


def split_model(network: Network, dropout: tuple[float, float] = (0.0, 0.0)) -> SplitModel:
    """Builds the whole model of a network."""
    return SplitModel(Features(network, dropout), Linear(network.classes))
