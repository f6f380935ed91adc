"""The quickstart's comparison as a plain PyTorch script: clients one after another.

    python benchmarks/short_runs_torch.py IMAGES.npz OUT

Three methods, three seeds, twenty rounds: mutual learning with a shared small model (like FedAPEN,
with equal weights in its ensemble), mixing of class rows in heads (like FedSSA), local training.
The networks, samples per client, epochs and evaluations are the quickstart's; a CSV and a plot are
written. Checkpoints, costs, intervals and the page have no counterpart here.
"""

import copy
import csv
import math
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLIENTS, ROUNDS, SEEDS, BATCH, STABLE = 20, 20, 3, 10, 20
METHODS = {"mutual": 0.041, "mixed heads": 0.041, "local": 0.11}  # learning rates


def network(widths):
    layers, width = [], 784
    for hidden in widths:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 10))


def clients_of(images, labels, seed):
    """Deals each client 100 training, 100 validation and 300 test samples."""
    order = np.random.default_rng(seed).permutation(len(labels)).reshape(CLIENTS, -1)
    x = torch.tensor(images.reshape(len(images), -1) / 255, dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.long)
    parts = [(rows[:100], rows[100:200], rows[200:]) for rows in order]
    return [[(x[rows], y[rows]) for rows in part] for part in parts]


def train(models, samples, rate):
    """Trains an epoch of one model, or of two that also learn from each other's scores."""
    x, y = samples
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], rate)
    for rows in torch.randperm(len(y)).split(BATCH):
        scores = [model(x[rows]) for model in models]
        loss = sum(functional.cross_entropy(score, y[rows]) for score in scores)
        if len(scores) == 2:
            logs = [functional.log_softmax(score, 1) for score in scores]
            for one, other in (logs, logs[::-1]):
                loss = loss + functional.kl_div(
                    one, other.detach(), reduction="batchmean", log_target=True
                )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(models, samples):
    x, y = samples
    scores = sum(functional.softmax(model(x), 1) for model in models)
    return (scores.argmax(1) == y).float().mean().item()


@torch.no_grad()
def average(models):
    for values in zip(*(model.parameters() for model in models)):
        mean = torch.stack(values).mean(0)
        for value in values:
            value.copy_(mean)


@torch.no_grad()
def mix_heads(models, clients, mu):
    heads = [model[-1] for model in models]
    seen = [torch.bincount(train[1], minlength=10) > 0 for train, _, _ in clients]
    weight, bias = (torch.zeros_like(heads[0].weight), torch.zeros_like(heads[0].bias))
    owners = torch.stack(seen).sum(0).clamp(min=1)
    for head, has in zip(heads, seen):
        weight += head.weight * has[:, None]
        bias += head.bias * has
    for head, has in zip(heads, seen):
        head.weight[has] = (weight / owners[:, None] + mu * head.weight)[has]
        head.bias[has] = (bias / owners + mu * head.bias)[has]


def run(method, rate, clients, seed):
    torch.manual_seed(seed)
    own = [network((32, 32) if i % 2 else (64, 32)) for i in range(CLIENTS)]
    shared = network((32,))
    groups = [[model] for model in own]
    if method == "mutual":
        groups = [[model, copy.deepcopy(shared)] for model in own]
    curve = []
    for round_ in range(ROUNDS + 1):
        if round_ % 2 == 0:
            scores = [[accuracy(g, s) for s in c[1:]] for g, c in zip(groups, clients)]
            curve.append(np.mean(scores, 0)[1])
        if round_ == ROUNDS:
            return curve
        for group, client in zip(groups, clients):
            train(group, client[0], rate)
            accuracy(group, client[2])
        if method == "mutual":
            average([group[1] for group in groups])
        elif method == "mixed heads":
            mix_heads(own, clients, 0.75 * math.cos(math.pi / 2 * min(1, (round_ + 1) / STABLE)))


def main():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data, out = np.load(sys.argv[1]), sys.argv[2]
    curves = {}
    for method, rate in METHODS.items():
        for seed in range(SEEDS):
            clients = clients_of(data["images"], data["labels"], seed)
            curves[method, seed] = run(method, rate, clients, seed)
    with open(f"{out}.csv", "w", newline="") as file:
        rows = ([*key, *curve] for key, curve in curves.items())
        csv.writer(file).writerows(rows)
    for method in METHODS:
        mean = np.mean([curves[method, seed] for seed in range(SEEDS)], 0)
        plt.plot(range(0, ROUNDS + 1, 2), mean, label=method)
        print(f"{method}: {100 * max(mean):.1f} %")
    plt.legend()
    plt.savefig(f"{out}.png")


if __name__ == "__main__":
    main()
