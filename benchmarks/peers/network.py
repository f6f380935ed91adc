"""A protocol's model in Flax."""

import flax.linen as nn
import jax

from benchmarks.peers.protocols import CLASSES, Protocol
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class Features(nn.Module):
    """The protocol's model up to its last hidden layer.

    Attributes:
      protocol: its layers.
      dropout: rates behind the convolutions and behind the hidden linear layers.
    """

    protocol: Protocol
    dropout: tuple[float, float] = (0.0, 0.0)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # Training gives a key, scoring none.
        convs, hidden = (
            nn.Dropout(rate, deterministic=not self.has_rng("dropout")) for rate in self.dropout
        )
        for i, (channels, kernel, pooled) in enumerate(self.protocol.convs):
            x = Conv(channels, kernel, name=f"conv{i}")(x)
            x = nn.relu(max_pool(x, 2, 2) if pooled else x)
        x = convs(x).reshape(x.shape[0], -1)
        for i, width in enumerate(self.protocol.widths):
            x = nn.relu(Linear(width, name=f"fc{i}")(x))
        return hidden(x)


def split_model(protocol: Protocol, dropout: tuple[float, float] = (0.0, 0.0)) -> SplitModel:
    """Returns the protocol's whole model."""
    return SplitModel(Features(protocol, dropout), Linear(CLASSES))
