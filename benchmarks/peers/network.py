"""Plain convolutional networks in Flax, from their description in `protocols`."""

from benchmarks.peers.protocols import Network
from fedjax_ht.models.cnn import ConvFeatures
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel


def split_model(network: Network, dropout: tuple[float, float] = (0.0, 0.0)) -> SplitModel:
    """Builds the whole model of a network."""
    base = ConvFeatures(network.convs, network.widths, dropout=dropout)
    return SplitModel(base, Linear(network.classes))
