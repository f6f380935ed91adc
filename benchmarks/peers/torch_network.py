"""Plain convolutional networks in PyTorch, from their description in `protocols`.

Imports torch alone, for the Pythons of all peers.
"""

from torch import nn


def torch_network(network) -> nn.Sequential:
    """Builds a `protocols.Network` for images [B, C, H, W]."""
    layers, (size, _, channels) = [], network.image
    for out, kernel, padding, pooled in network.convs:
        layers += [nn.Conv2d(channels, out, kernel, padding=padding), nn.ReLU()]
        channels, size = out, size + 2 * padding - kernel + 1
        if pooled:
            layers.append(nn.MaxPool2d(2))
            size //= 2
    layers.append(nn.Flatten())
    width = channels * size * size
    for out in network.widths:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, network.classes))
