"""Plays a protocol by a plain PyTorch loop on one thread.

Users train one after another, and the server keeps a running weighted sum of their models.
"""

import numpy as np
import torch
from protocols import Protocol, rows_of
from side import arguments, first_weights, play
from torch import nn
from torch_network import torch_network


def network(protocol: Protocol, weights: list[np.ndarray]) -> nn.Sequential:
    """Builds the protocol's model with these weights."""
    model = torch_network(protocol.network)
    set_weights(model, weights)
    return model


def set_weights(model: nn.Module, weights: list[np.ndarray]) -> None:
    """Sets the weights of all layers, as `side` orders them, in place."""
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight))


def weights_of(model: nn.Module) -> list[np.ndarray]:
    """Returns the weights of all layers, which share the model's memory."""
    return [p.detach().numpy() for p in model.parameters()]


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs float32 [N, 3, 32, 32] between 0 and 1, and labels int64 [N]."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return x, torch.from_numpy(labels).long()


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, protocol: Protocol) -> None:
    """Trains a model in place by the protocol's local training."""
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=protocol.learning_rate)
    for _ in range(protocol.epochs):
        for images, labels in zip(x.split(protocol.batch_size), y.split(protocol.batch_size)):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()


def main() -> None:
    """Plays the protocol, see `side`."""
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
                for mean, trained in zip(total, local.parameters()):
                    mean.add_(trained, alpha=1 / len(users))
        with torch.no_grad():
            for old, new in zip(server.parameters(), total):
                old.copy_(new)

    play(one_round, lambda: weights_of(server), rounds, answer, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
