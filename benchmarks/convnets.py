"""Times a client's training step on plain convolutional networks, and a plain PyTorch loop.

The networks are those that papers and simulators of federated learning use and the zoo lacks; ours
is the real round of `local`.

    python -m benchmarks.convnets --cores=1 --out=benchmarks/results/convnets.md

Each measurement has its own process, PyTorch's before and after ours; without torch its columns are
empty.
"""

import json

import jax
import numpy as np
from absl import app, flags

from benchmarks import beside_torch
from benchmarks.beside_torch import BATCH, CLIENTS, CORES, HOW, STEPS
from benchmarks.peers.network import split_model
from benchmarks.peers.protocols import BLAZEFL_CNN, PFL_CNN, Network
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.cli import parse_flags

_VGG = (
    (64, True),
    (128, True),
    (256, False),
    (256, True),
    (512, False),
    (512, True),
    (512, False),
    (512, True),
)
NETWORKS = {
    "pfl, CIFAR-10": PFL_CNN,
    "pfl and FedJAX, EMNIST": PFL_CNN._replace(image=(28, 28, 1), classes=62),
    "FedAvg's, EMNIST": Network((28, 28, 1), 62, ((32, 5, 2, True), (64, 5, 2, True)), (512,)),
    "LeNet-5, MNIST": Network((28, 28, 1), 10, ((6, 5, 2, True), (16, 5, 0, True)), (120, 84)),
    "BlazeFL, CIFAR-10": BLAZEFL_CNN,
    "VGG-11, CIFAR-10": Network(
        (32, 32, 3), 10, tuple((c, 3, 1, pooled) for c, pooled in _VGG), ()
    ),
    "4-layer CNN, 64x64x3": Network((64, 64, 3), 200, ((32, 5, 0, True), (64, 5, 0, True)), (512,)),
}

_NETWORKS = flags.DEFINE_list(
    "networks", [str(i) for i in range(len(NETWORKS))], "What to measure, by position."
)


def samples(network: Network, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random images uint8 [count, H, W, C], and labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *network.image), np.uint8)
    return images, rng.integers(0, network.classes, count)


def measure_here(network: Network, cores: int) -> dict:
    """Returns the figures of a child process on so many cores."""
    beside_torch.pinned(cores)
    if HOW.value == "ours":
        images, labels = samples(network, CLIENTS * STEPS.value * BATCH)
        dataset = Dataset("random images", images, labels, tuple(map(str, range(network.classes))))
        return beside_torch.ours(split_model(network), dataset)
    from benchmarks.peers.torch_network import torch_network

    images, labels = samples(network, STEPS.value * BATCH)
    images = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / 127.5 - 1
    return beside_torch.theirs(lambda: torch_network(network), images, labels, cores)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    names = list(NETWORKS)
    cases = [(names[int(i)], i, c) for i in _NETWORKS.value for c in CORES.value]
    if HOW.value:
        print(json.dumps(measure_here(NETWORKS[cases[0][0]], int(cases[0][2]))))
        return
    rows, version = [], ""
    for name, i, cores in cases:
        cells, version = beside_torch.row("benchmarks.convnets", [f"--networks={i}"], cores)
        rows.append([name, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    beside_torch.publish_rows("images", ("network", *beside_torch.HEAD), rows, version, "")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
