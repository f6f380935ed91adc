r"""Measures costs by number of clients: seconds of a round, memory, bytes on disk.

    python -m benchmarks.many_clients                       random images of Fashion-MNIST's shape
    python -m benchmarks.many_clients --data=fashion_mnist --data_dir=data \
        --out=benchmarks/results/NAME.md

Seconds are also those of an evaluation and a checkpoint. FedProto has CNN-1..5, and states in host
memory. Each number of clients has its own process, the same 70,000 images, 5 of them to train and 2
to test per client, and 50 participants per round, so that only idle clients increase. With --out
the curves are drawn beside it, as .png.
"""

import json
import resource
import tempfile
import time
from pathlib import Path

import jax
import matplotlib
import numpy as np
import optax
from absl import app, flags

from benchmarks.report import in_a_process, machine, publish, table
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.models import model_group
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.rows import evaluation_row
from fedjax_ht.simulation.simulation import make_simulation

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_DATA = flags.DEFINE_string(
    "data", "synthetic", "A dataset of at least 7 images a client, or 'synthetic'."
)
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "The folder of the dataset's files.")
_CLIENTS = flags.DEFINE_list("clients", ["1000", "3000", "10000"], "Numbers of clients.")
_CHECKPOINTS = flags.DEFINE_integer(
    "checkpoints", 3, "Checkpoints to write, each after ten rounds."
)
_MEASURE = flags.DEFINE_integer(
    "measure", 0, "Measure this number of clients here and print JSON; for the child."
)

PARTICIPANTS, SAMPLE, TRAIN, TEST, ROUNDS_BETWEEN = 50, 200, 5, 2, 10
MB = 1e6


def images() -> Dataset:
    """Returns the images, which are the same for every number of clients."""
    if _DATA.value != "synthetic":
        return load_dataset(_DATA.value, _DATA_DIR.value)
    rng = np.random.default_rng(0)
    x, y = (
        rng.integers(0, 256, (70_000, 28, 28, 1), np.uint8),
        rng.integers(0, 10, 70_000).astype(np.int32),
    )
    return Dataset("random images", x, y, tuple("0123456789"))


def measure(num_clients: int) -> dict[str, float]:
    """Returns the figures for one number of clients.

    Seconds are medians, without a process's first call, which compiles.
    """
    started = time.perf_counter()
    dataset = images()
    order = np.random.default_rng(1).permutation(len(dataset.labels))[
        : (TRAIN + TEST) * num_clients
    ]
    dealt = order.reshape(num_clients, TRAIN + TEST)
    partition = tuple(ClientIndices(hand[:TRAIN], hand[:0], hand[TRAIN:]) for hand in dealt)
    training = LocalTraining(optax.sgd(0.01), batch_size=10)
    method, shape = fedproto(training), dataset.input_shape
    modules = model_group("cnn5", dataset.num_classes, shape)
    federation = make_federation(modules, shape, dataset.num_classes, num_clients=num_clients)
    data = make_federation_data(dataset, partition, federation)
    options = SimulationOptions(participation=PARTICIPANTS / num_clients, client_store="host")
    simulation = make_simulation(method, federation, data, options)
    state = simulation.init()
    sample = np.linspace(0, num_clients - 1, SAMPLE).astype(np.int64)
    figures = {"clients": num_clients, "start": time.perf_counter() - started}
    figures["store"] = sum(x.nbytes for x in jax.tree.leaves(state.clients)) / MB
    times: dict[str, list[float]] = {"round": [], "evaluation": [], "checkpoint": []}
    written = []

    def timed(name, call):
        start = time.perf_counter()
        result = call()
        times[name].append(time.perf_counter() - start)
        return result

    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(Path(folder) / "checkpoints", simulation)
        checkpointer.save(state, [])
        history = []
        for _ in range(_CHECKPOINTS.value):
            for _ in range(ROUNDS_BETWEEN):
                state, _report = timed("round", lambda s=state: simulation.run_round(s))
            evaluated = timed("evaluation", lambda s=state: simulation.evaluate(s, sample))
            history.append({"round": state.round} | evaluation_row(evaluated, method.rules))
            before = files(folder)
            timed("checkpoint", lambda s=state: checkpointer.save(s, history))
            written.append(sum(size for path, size in files(folder).items() if path not in before))
        figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
        start = time.perf_counter()
        checkpointer.restore()
        figures["restore"] = time.perf_counter() - start
    figures |= {
        "round": float(np.median(times["round"][1:])),
        "checkpoint": float(np.median(times["checkpoint"])),
    }
    return figures | {
        "evaluation": float(np.median(times["evaluation"][1:])),
        "written": np.median(written) / MB,
    }


def files(folder: Path | str) -> dict[Path, int]:
    """Returns the bytes of every file below a folder."""
    return {path: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}


COLUMNS = {  # column -> (figure, format)
    "clients": ("clients", ",.0f"),
    "s a round": ("round", ".3f"),
    f"s an evaluation of {SAMPLE}": ("evaluation", ".3f"),
    "s a checkpoint": ("checkpoint", ".2f"),
    "MB a checkpoint": ("written", ".1f"),
    "s to restore": ("restore", ".1f"),
    "s to start": ("start", ".1f"),
    "store MB": ("store", ",.0f"),
    "peak memory MB": ("peak", ",.0f"),
    "peak less store MB": ("rest", ",.0f"),
}


def report(measured: list[dict[str, float]]) -> str:
    """Returns the measurements as Markdown."""
    rows = []
    for figures in measured:
        rows.append([format(figures[name], spec) for name, spec in COLUMNS.values()])
    first, last = measured[0], measured[-1]
    ratios = ", ".join(f"{name} {last[key] / first[key]:.2f}" for name, (key, _) in COLUMNS.items())
    lines = [
        f"FedProto, CNN-1..5, host store, {_DATA.value} images, {TRAIN} to train and {TEST} to "
        "test on a client; "
        f"{PARTICIPANTS} participants a round, a checkpoint every {ROUNDS_BETWEEN} rounds.",
        machine(),
        "",
        table(list(COLUMNS), rows),
        "",
        f"Last row over first: {ratios}.",
    ]
    return "\n".join(lines)


def curves(measured: list[dict[str, float]]) -> plt.Figure:
    """Plots seconds, and memory, against the number of clients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    clients = [figures["clients"] for figures in measured]
    for name in ("round", "evaluation", "checkpoint"):
        left.plot(clients, [figures[name] for figures in measured], "o-", label=name)
    for name, label in (
        ("peak", "peak of the process"),
        ("store", "client store"),
        ("rest", "peak less store"),
    ):
        right.plot(clients, [figures[name] for figures in measured], "o-", label=label)
    left.set(xlabel="clients", ylabel="seconds", ylim=(0, None))
    right.set(xlabel="clients", ylabel="MB", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def main(_) -> None:
    if _MEASURE.value:
        print(json.dumps(measure(_MEASURE.value)))
        return
    given = [f"--{flag.name}={flag.value}" for flag in (_DATA, _DATA_DIR, _CHECKPOINTS)]
    measured = []
    for clients in _CLIENTS.value:
        figures = in_a_process("benchmarks.many_clients", [f"--measure={clients}", *given])
        measured.append(figures | {"rest": figures["peak"] - figures["store"]})
    publish(report(measured))
    if flags.FLAGS.out:
        with atomic_open(Path(flags.FLAGS.out).with_suffix(".png"), "wb") as file:
            curves(measured).savefig(file, format="png", dpi=100)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
