"""Times a round: ms per client step, and seconds of its parts and of compilation.

    python -m benchmarks.round                                synthetic images of MNIST's shape
                                                              and split
    python -m benchmarks.round --data=client_folders:PATH     real client folders (PFLlib, HtFLlib)
    python -m benchmarks.round --shape=32,32,3 --out=benchmarks/results/NAME.md

The parts are training, upload, server and evaluation. If torch is installed, a plain PyTorch loop
of the same training steps is timed in the same process, before and after ours.
"""

import importlib.util
import resource
import time
from pathlib import Path

import numpy as np
import optax
from absl import app, flags

from benchmarks.peers.protocols import Network
from benchmarks.report import machine, publish
from fedjax_ht.core.federation import Federation, make_federation
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import Method
from fedjax_ht.data.client_data import FederationData, make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.runs.processes import use_all_cores
from fedjax_ht.methods.fedtgp import fedtgp
from fedjax_ht.models import cnn4, model_group
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.rows import evaluation_row
from fedjax_ht.simulation.simulation import make_simulation

_DATA = flags.DEFINE_string(
    "data", "synthetic", "A dataset with a split of its own, or 'synthetic'."
)
_SHAPE = flags.DEFINE_list("shape", ["28", "28", "1"], "Image shape of the synthetic data.")
_ROUNDS = flags.DEFINE_integer("rounds", 4, "Rounds to run; the first compiles and is not counted.")
_LANES = flags.DEFINE_integer("lanes", 0, "Clients side by side; 0 chooses by backend.")

MNIST_TRAIN = (
    1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004, 2337, 2829, 2709, 1600, 4297, 4086,
    2721, 4239, 3949, 4577,
)  # fmt: skip
"""Training samples of the 20 clients in PFLlib's MNIST split, Dirichlet 0.1."""


def synthetic(shape: tuple[int, int, int]) -> Dataset:
    """Makes random images with the sizes of PFLlib's MNIST split, and two classes per client."""
    rng, clients, start = np.random.default_rng(0), [], 0
    for size in MNIST_TRAIN:
        total = size + size // 3
        clients.append(
            ClientIndices(
                np.arange(start, start + size),
                np.array([], int),
                np.arange(start + size, start + total),
            )
        )
        start += total
    labels = np.concatenate(
        [rng.integers(0, 2, len(c.train) + len(c.test)) + i % 9 for i, c in enumerate(clients)]
    )
    images = rng.integers(0, 256, (start, *shape), np.uint8)
    return Dataset("synthetic", images, labels, tuple("0123456789"), clients=tuple(clients))


def seconds_of_rounds(method: Method, federation: Federation, data: FederationData, rounds: int):
    """Returns seconds of rounds and of evaluations, and accuracies.

    (first round, median of the later ones, first evaluation, median of the later ones, accuracies
    after each round).
    """
    simulation = make_simulation(
        method, federation, data, SimulationOptions(lanes=_LANES.value or None, shared_init=True)
    )
    state, train, evaluate, accuracy = simulation.init(), [], [], []
    for _ in range(rounds):
        start = time.perf_counter()
        state, _report = simulation.run_round(state)
        train.append(time.perf_counter() - start)
        start = time.perf_counter()
        row = evaluation_row(simulation.evaluate(state), method.rules)
        evaluate.append(time.perf_counter() - start)
        accuracy.append(row["accuracy_weighted"])
    return (
        train[0],
        float(np.median(train[1:])),
        evaluate[0],
        float(np.median(evaluate[1:])),
        accuracy,
    )


def without_server(method: Method) -> Method:
    """Returns a method with the same client work whose server does nothing."""
    return method._replace(server_update=lambda federation, server, received, ctx: (server, {}))


def without_upload(method: Method) -> Method:
    """Returns a method that only trains: the compiler removes what only the uplink needs."""

    def client_update(bucket, client, downlink, data, ctx):
        client, _, metrics = method.client_update(bucket, client, downlink, data, ctx)
        return client, (), metrics

    return without_server(method)._replace(client_update=client_update)


def report(dataset: Dataset) -> str:
    """Returns the measurements as Markdown."""
    training = LocalTraining(optax.sgd(0.01), batch_size=10)
    method = fedtgp(training, variant="released")
    shape = dataset.input_shape
    federation = make_federation(
        model_group("cnn4", dataset.num_classes, shape),
        shape,
        dataset.num_classes,
        num_clients=len(dataset.clients),
    )
    data = make_federation_data(dataset, dataset.clients, federation)
    steps = int(num_steps(training, data.counts["train"]).sum())
    torch_step = torch_seconds(shape)
    first, full, eval_first, evaluate, accuracy = seconds_of_rounds(
        method, federation, data, _ROUNDS.value
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _, clients, _, _, _ = seconds_of_rounds(without_server(method), federation, data, 3)
    _, train, _, _, _ = seconds_of_rounds(without_upload(method), federation, data, 3)
    torch_step = [torch_step, torch_seconds(shape)] if torch_step else None
    lines = [
        f"FedTGP (released variant), 4-layer CNN, {Path(dataset.name).name} {shape}, "
        f"{len(dataset.clients)} clients, {data.counts['train'].sum():,} training images, batch "
        f"10, one epoch = {steps:,} client steps a round.",
        machine(),
        "",
        "| what | seconds |",
        "|---|---|",
        f"| training (all clients) | {train:.2f} |",
        f"| upload: prototypes of all clients | {max(0.0, clients - train):.2f} |",
        f"| server: 100 epochs over the prototypes | {max(0.0, full - clients):.2f} |",
        f"| evaluation of all clients | {evaluate:.2f} |",
        f"| **whole round with evaluation** | **{full + evaluate:.2f}** |",
        f"| compilation, once | {first - full + eval_first - evaluate:.1f} |",
        "",
        f"* {1e3 * train / steps:.2f} ms a client step, inside the full round",
        f"* peak memory of the process: {peak:.0f} MB"
        + (", torch loaded too" if torch_step else ""),
        "* sample-weighted accuracy after each round: "
        + ", ".join(f"{100 * a:.2f} %" for a in accuracy),
    ]
    if torch_step:
        import torch

        both = ", ".join(f"{1e3 * s:.2f}" for s in torch_step)
        lines.append(
            f"* plain PyTorch {torch.__version__} loop of the same step, "
            f"{torch.get_num_threads()} threads: {both} ms "
            f"(before, after); ours / the faster = {train / steps / min(torch_step):.2f}"
        )
    return "\n".join(lines)


def torch_seconds(shape: tuple[int, int, int]) -> float | None:
    """Returns seconds of PyTorch's step; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    from benchmarks.torch_loop import seconds_per_step

    cnn = cnn4(num_classes=10).base
    return seconds_per_step(Network(shape, 10, cnn.convs, cnn.widths))


def main(_) -> None:
    use_all_cores()
    shape = tuple(int(s) for s in _SHAPE.value)
    dataset = synthetic(shape) if _DATA.value == "synthetic" else load_dataset(_DATA.value)
    text = report(dataset)
    publish(text)


if __name__ == "__main__":
    app.run(main)
