"""The plain PyTorch loop with which ours is compared.

Clients train one after another with SGD, on images in memory.
"""

import time
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from benchmarks.peers.protocols import Network
from benchmarks.peers.torch_network import torch_network


def random_batches(
    image_shape: tuple[int, int, int], num_classes: int, batch_size: int, steps: int, device: str
):
    """Returns images [steps, B, C, H, W] and labels [steps, B] on the device."""
    height, width, channels = image_shape
    rng = np.random.default_rng(0)
    x = torch.from_numpy(
        rng.standard_normal((steps, batch_size, channels, height, width), np.float32)
    )
    y = torch.from_numpy(rng.integers(0, num_classes, (steps, batch_size)))
    return x.to(device), y.to(device)


def train_in_turn(models: Iterable[nn.Module], x: torch.Tensor, y: torch.Tensor) -> float:
    """Returns the seconds in which every model takes one SGD step on each batch."""
    loss = nn.CrossEntropyLoss()
    start = time.perf_counter()
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in zip(x, y):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def seconds_per_step(
    network: Network, batch_size: int = 10, clients: int = 5, steps: int = 60
) -> float:
    """Returns the seconds of one training step of a network.

    They are the mean over `clients` models, after one more has warmed up.
    """
    x, y = random_batches(network.image, network.classes, batch_size, steps, "cpu")
    models = [torch_network(network) for _ in range(clients + 1)]
    train_in_turn([models.pop()], x, y)
    return train_in_turn(models, x, y) / (clients * steps)
