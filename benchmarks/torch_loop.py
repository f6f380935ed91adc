"""The plain PyTorch loop that ours is measured against: clients one after another, SGD, images held
in memory."""

import time
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn


def cnn(
    image_shape: tuple[int, int, int],
    convs: tuple[int, ...],
    widths: tuple[int, ...],
    num_classes: int,
):
    """[conv 5x5, ReLU, max-pool 2] per conv, [linear, ReLU] per width, linear head, for images (H,
    W, C)."""
    height, width, channels = image_shape
    layers: list[nn.Module] = []
    for out in convs:
        layers += [nn.Conv2d(channels, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = out, (height - 4) // 2, (width - 4) // 2
    layers.append(nn.Flatten())
    flat = channels * height * width
    for out in widths:
        layers += [nn.Linear(flat, out), nn.ReLU()]
        flat = out
    return nn.Sequential(*layers, nn.Linear(flat, num_classes))


def random_batches(
    image_shape: tuple[int, int, int], num_classes: int, batch_size: int, steps: int, device: str
):
    """(images [steps, B, C, H, W], labels [steps, B]) on the device."""
    height, width, channels = image_shape
    rng = np.random.default_rng(0)
    x = torch.from_numpy(
        rng.standard_normal((steps, batch_size, channels, height, width), np.float32)
    )
    y = torch.from_numpy(rng.integers(0, num_classes, (steps, batch_size)))
    return x.to(device), y.to(device)


def train_in_turn(models: Iterable[nn.Module], x: torch.Tensor, y: torch.Tensor) -> float:
    """Seconds in which every model takes one SGD step on each batch."""
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
    image_shape: tuple[int, int, int],
    convs: tuple[int, ...],
    widths: tuple[int, ...],
    num_classes: int = 10,
    batch_size: int = 10,
    clients: int = 5,
    steps: int = 60,
) -> float:
    """Seconds of one training step of a small CNN, averaged over `clients` models, after one more
    has warmed up."""
    x, y = random_batches(image_shape, num_classes, batch_size, steps, "cpu")
    models = [cnn(image_shape, convs, widths, num_classes) for _ in range(clients + 1)]
    train_in_turn([models.pop()], x, y)
    return train_in_turn(models, x, y) / (clients * steps)
