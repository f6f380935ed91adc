"""The plain PyTorch loop that the JAX rounds are measured against: the same CNN, clients one after another, SGD."""

import time

import numpy as np
import torch
from torch import nn


def cnn(channels: int, convs: tuple[int, ...], widths: tuple[int, ...], flat: int, num_classes: int) -> nn.Module:
    """[conv 5x5, ReLU, max-pool 2] per conv, [linear, ReLU] per width, linear head."""
    layers: list[nn.Module] = []
    for out in convs:
        layers += [nn.Conv2d(channels, out, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    layers.append(nn.Flatten())
    for out in widths:
        layers += [nn.Linear(flat, out), nn.ReLU()]
        flat = out
    return nn.Sequential(*layers, nn.Linear(flat, num_classes))


def seconds_per_step(
    input_shape: tuple[int, int, int],
    convs: tuple[int, ...],
    widths: tuple[int, ...],
    num_classes: int = 10,
    batch_size: int = 10,
    clients: int = 5,
    steps: int = 60,
) -> float:
    """Seconds of one training step, averaged over `clients` models trained in turn on images held in memory."""
    height, width, channels = input_shape
    side = [height, width]
    for _ in convs:
        side = [(s - 4) // 2 for s in side]
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((steps * batch_size, channels, height, width), np.float32))
    y = torch.from_numpy(rng.integers(0, num_classes, steps * batch_size))
    loss = nn.CrossEntropyLoss()

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(0, len(x), batch_size):
            optimizer.zero_grad()
            loss(model(x[i : i + batch_size]), y[i : i + batch_size]).backward()
            optimizer.step()

    models = [cnn(channels, convs, widths, convs[-1] * side[0] * side[1], num_classes) for _ in range(clients + 1)]
    train(models.pop())  # warm-up
    start = time.perf_counter()
    for model in models:
        train(model)
    return (time.perf_counter() - start) / (clients * steps)
