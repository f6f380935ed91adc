"""A plain PyTorch loop on one thread: users one after another, and a running weighted sum of their
models."""

import numpy as np
import torch
from protocols import CLASSES, Protocol, rows_of
from side import arguments, first_weights, play
from torch import nn


def network(protocol: Protocol, weights: list[np.ndarray]) -> nn.Sequential:
    """The protocol's model."""
    layers, channels, size = [], 3, 32
    for out, kernel, pooled in protocol.convs:
        layers += [nn.Conv2d(channels, out, kernel), nn.ReLU()] + [nn.MaxPool2d(2)] * pooled
        channels, size = out, (size - kernel + 1) // (2 if pooled else 1)
    layers.append(nn.Flatten())
    width = channels * size * size
    for out in protocol.widths:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    model = nn.Sequential(*layers, nn.Linear(width, CLASSES))
    set_weights(model, weights)
    return model


def set_weights(model: nn.Module, weights: list[np.ndarray]) -> None:
    """Sets the weights of all layers, as `side` orders them, in place."""
    with torch.no_grad():
        for own, given in zip(model.parameters(), weights, strict=True):
            own.copy_(torch.from_numpy(given))


def weights_of(model: nn.Module) -> list[np.ndarray]:
    """Returns the weights of all layers, which share the model's memory."""
    return [p.detach().numpy() for p in model.parameters()]


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's inputs and labels: float32 [N, 3, 32, 32] between 0 and 1, and int64
    [N]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(
        labels
    ).long()


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, protocol: Protocol) -> None:
    """Local training, in place."""
    loss, optimizer = (
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=protocol.learning_rate),
    )
    for _ in range(protocol.epochs):
        for images, labels in zip(x.split(protocol.batch_size), y.split(protocol.batch_size)):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()


def main() -> None:
    """See `side`."""
    protocol, problem, rounds, answer = arguments()
    torch.set_num_threads(1)
    server = network(protocol, first_weights(problem))
    local = network(protocol, first_weights(problem))
    images, labels = tensors(problem["images"], problem["labels"])

    def one_round(number: int) -> None:
        users = problem["cohorts"][number]
        total = [torch.zeros_like(p) for p in server.parameters()]
        for user in users:
            local.load_state_dict(server.state_dict())
            rows = rows_of(protocol, user, len(labels))
            train(local, images[rows], labels[rows], protocol)
            with torch.no_grad():
                for own, trained in zip(total, local.parameters()):
                    own.add_(trained, alpha=1 / len(users))
        with torch.no_grad():
            for old, new in zip(server.parameters(), total):
                old.copy_(new)

    play(one_round, lambda: weights_of(server), rounds, answer, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
