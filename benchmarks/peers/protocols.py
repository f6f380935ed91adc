"""The protocols that all simulators run, and files with their samples and first weights.

Imports NumPy alone, for the Pythons of all peers.
"""

from typing import NamedTuple

import numpy as np


class Network(NamedTuple):
    """A plain convolutional network; `network.py` builds it in Flax, `torch_network.py` in PyTorch.

    Attributes:
      image: (H, W, C) of its input, H = W.
      classes: of its linear head.
      convs: (channels, kernel size, padding, whether a pooling by 2 follows) of each convolution,
        each followed by a ReLU.
      widths: of the hidden linear layers, each followed by a ReLU.
    """

    image: tuple[int, int, int]
    classes: int
    convs: tuple[tuple[int, int, int, bool], ...]
    widths: tuple[int, ...]


class Protocol(NamedTuple):
    """FedAvg on images of 32x32x3 with plain SGD, in stored order so that all simulators end with
    the same weights.

    Attributes:
      users, samples: number of users, and of training images of each.
      cohort: number of users in a round.
      epochs, batch_size, learning_rate: local training.
      network: the trained network.
    """

    users: int
    samples: int
    cohort: int
    epochs: int
    batch_size: int
    learning_rate: float
    network: Network


PFL_CNN = Network(
    image=(32, 32, 3), classes=10, convs=((32, 3, 0, False), (64, 3, 0, True)), widths=(128,)
)
# The CNN of PyTorch's tutorial.
BLAZEFL_CNN = Network(
    image=(32, 32, 3), classes=10, convs=((6, 5, 0, True), (16, 5, 0, True)), widths=(120, 84)
)
_PFL = Protocol(
    users=1000,
    samples=50,
    cohort=50,
    epochs=1,
    batch_size=10,
    learning_rate=0.1,
    network=PFL_CNN,
)
PROTOCOLS = {
    # pfl-research's CIFAR-10 benchmark (arXiv 2404.06430), without its dropout; and with more users
    # of the same images.
    "pfl": _PFL,
    "pfl-10000": _PFL._replace(users=10_000),
    "pfl-100000": _PFL._replace(users=100_000),
    # BlazeFL's (arXiv 2604.03606): the clients' training share of 500 images. Its 40 steps magnify
    # rounding: the same PyTorch loop ends 3.6e-5 apart after round 1 if pixels are multiplied by
    # 1/255 instead of divided by 255.
    "blazefl": Protocol(
        users=100,
        samples=400,
        cohort=100,
        epochs=5,
        batch_size=50,
        learning_rate=0.1,
        network=BLAZEFL_CNN,
    ),
}


def write_problem(path: str, protocol: Protocol, cohorts: np.ndarray) -> None:
    """Writes random images and labels, the cohorts, and first weights in torch's layout.

    The file has images uint8 [N, 32, 32, 3], labels int64 [N], user i's being those from i times
    `samples` on, modulo N; cohorts int64 [rounds, cohort], and `weight_<k>`, `bias_<k>` of layer k.
    """
    rng, network = np.random.default_rng(0), protocol.network
    count = min(protocol.users * protocol.samples, 50_000)
    arrays = {
        "cohorts": cohorts,
        "images": rng.integers(0, 256, (count, *network.image), np.uint8),
        "labels": rng.integers(0, network.classes, count),
    }
    for k, shape in enumerate(weight_shapes(network)):
        bound = 1 / np.sqrt(np.prod(shape[1:]))
        arrays[f"weight_{k}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        arrays[f"bias_{k}"] = rng.uniform(-bound, bound, shape[0]).astype(np.float32)
    np.savez(path, **arrays)


def weight_shapes(network: Network) -> list[tuple[int, ...]]:
    """Returns the shapes of the layers' weights as torch has them.

    [out, in, k, k] of a convolution, [out, in] of a linear layer; the first of these stands behind
    a flattening of [C, H, W].
    """
    shapes, (size, _, channels) = [], network.image
    for out, kernel, padding, pooled in network.convs:
        shapes.append((out, channels, kernel, kernel))
        channels, size = out, size + 2 * padding - kernel + 1
        if pooled:
            size //= 2
    width = channels * size * size
    for out in (*network.widths, network.classes):
        shapes.append((out, width))
        width = out
    return shapes


def rows_of(protocol: Protocol, user: int, count: int) -> np.ndarray:
    """Returns the indices of a user's samples among `count`."""
    return (user * protocol.samples + np.arange(protocol.samples)) % count


def flattened(network: Network) -> list[int]:
    """Returns for each layer the channels of the map that is flattened before it, else 1."""
    dense = [network.convs[-1][0]] + [1] * len(network.widths)
    return [1] * len(network.convs) + dense


def from_torch(weight: np.ndarray, channels: int) -> np.ndarray:
    """Converts a layer's weight to JAX's layout.

    Args:
      weight: [out, in, k, k], or [out, C * H * W].
      channels: C of the map that is flattened before the layer, or 1.

    Returns:
      [k, k, in, out], or [H * W * C, out].
    """
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0)
    rows = weight.T.reshape(channels, -1, len(weight))  # [C, H * W, out]
    return rows.transpose(1, 0, 2).reshape(-1, len(weight))


def to_torch(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Converts a layer's weight to torch's layout: the inverse of `from_torch`."""
    if kernel.ndim == 4:
        return kernel.transpose(3, 2, 0, 1)
    rows = kernel.reshape(-1, channels, kernel.shape[1])  # [H * W, C, out]
    return rows.transpose(1, 0, 2).reshape(-1, kernel.shape[1]).T
