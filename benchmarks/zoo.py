"""Times a client's training step, model by model, and a plain PyTorch loop.

    python -m benchmarks.zoo                                     all models
    python -m benchmarks.zoo --models=resnet18,vit_small --out=benchmarks/results/NAME.md
    python -m benchmarks.zoo --htfe8                             also 20 clients of HtFE8's eight
                                                                 models, a whole epoch

Ours is the real round of the method `local`: one client at a time, in lanes, and one device per
core. Each measurement has its own process, PyTorch's before and after ours; without torch its
columns are empty. FLOPs and bytes are XLA's count for one compiled step.
"""

import importlib.util
import json
import os
import statistics
import time
from typing import NamedTuple

import jax
import numpy as np
import optax
from absl import app, flags

from benchmarks.report import in_a_process, machine, number, peak_memory, publish, table
from benchmarks.step_costs import BATCH, mean_step_cost, peaks
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.methods.local import local
from fedjax_ht.models import model_group
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      title: title of the row.
      group: group of models.
      shape: shape of the images.
      clients: number of clients that train in a round.
      steps: number of steps of each client.
    """

    title: str
    group: str
    shape: tuple[int, int, int]
    clients: int
    steps: int


GREY, COLOUR = (28, 28, 1), (32, 32, 3)
ROWS = {
    "cnn4_grey": Row("4-layer CNN, 28x28x1", "cnn4", GREY, 4, 100),
    "cnn4": Row("4-layer CNN, 32x32x3", "cnn4", COLOUR, 4, 100),
    "cnn5_grey": Row("CNN-1..5, 28x28x1", "cnn5", GREY, 20, 20),
    "cnn5": Row("CNN-1..5, 32x32x3", "cnn5", COLOUR, 20, 20),
    "resnet18": Row("ResNet-18", "resnet18", COLOUR, 4, 10),
    "mobilenet_v2": Row("MobileNetV2", "mobilenet_v2", COLOUR, 4, 10),
    "googlenet": Row("GoogLeNet", "googlenet", COLOUR, 4, 10),
    "resnet50": Row("ResNet-50", "resnet50", COLOUR, 4, 5),
    "vit_small": Row("ViT small", "vit_small", COLOUR, 4, 10),
}
# CIFAR-10's 60,000 images dealt evenly, three quarters of them for training.
HTFE8 = Row("HtFE8, a round", "htfe8", COLOUR, 20, 225)
CLASSES, LANES = 10, 4
_MODELS = flags.DEFINE_list("models", list(ROWS), "Rows to measure.")
flags.register_validator("models", {*ROWS, "htfe8"}.issuperset, f"the rows are {', '.join(ROWS)}")
_HTFE8 = flags.DEFINE_bool("htfe8", False, "Also a whole HtFE8 round.")
_ROUNDS = flags.DEFINE_integer(
    "rounds", 4, "Rounds of each measurement; the first compiles and is not counted."
)
_CLIENTS = flags.DEFINE_integer("clients", 0, "Clients of each row; 0 for the row's own.")
_STEPS = flags.DEFINE_integer("steps", 0, "Steps of each client; 0 for the row's own.")
_HOW = flags.DEFINE_enum(
    "how",
    None,
    ["scan", "lanes", "devices", "torch", "cost", "peaks"],
    "Measure this here and print JSON; for the child.",
)


def simulate(row: Row, lanes: int, devices: int) -> dict:
    """Returns seconds of the first round, the median of later ones, and peak bytes."""
    needed = row.steps * BATCH
    rng, total = np.random.default_rng(0), row.clients * needed
    images = rng.integers(0, 256, (total, *row.shape), np.uint8)
    none = np.array([], np.int64)
    shares = np.arange(total).reshape(row.clients, needed)
    partition = tuple(ClientIndices(rows, none, none) for rows in shares)
    dataset = Dataset("random images", images, rng.integers(0, CLASSES, total), tuple("0123456789"))
    federation = make_federation(
        model_group(row.group, CLASSES, row.shape), row.shape, CLASSES, num_clients=row.clients
    )
    training = LocalTraining(optax.sgd(0.01), BATCH)
    data = arranged(dataset, partition, federation)
    options = SimulationOptions(lanes=lanes, devices=devices)
    simulation = make_simulation(local(training), federation, data, options)
    state, seconds = simulation.init(), []
    for _ in range(_ROUNDS.value):
        start = time.perf_counter()
        state, _report = simulation.run_round(state)
        jax.block_until_ready(state.clients)
        seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "round": statistics.median(seconds[1:]), "peak": peak_memory()}


def measure_here(row: Row, how: str) -> dict:
    """Returns the figures of a child process."""
    if how == "peaks":
        return peaks()
    if how == "cost":
        return mean_step_cost(row.group, row.shape, CLASSES, row.clients)
    if how == "torch":
        from benchmarks import zoo_torch

        modules = model_group(row.group, CLASSES, row.shape)
        return zoo_torch.measure(
            modules, row.shape, CLASSES, BATCH, row.clients, row.steps, _ROUNDS.value
        )
    return simulate(row, LANES if how == "lanes" else 1, len(jax.devices()))


def measure(name: str) -> dict[str, dict | None]:
    """Returns all measurements of a row, each from its own process; None for skipped ones."""

    def child(how: str, devices: int = 1) -> dict:
        flag_values = [f"--{flag.name}={flag.value}" for flag in (_ROUNDS, _CLIENTS, _STEPS)]
        return in_a_process(
            "benchmarks.zoo", [f"--models={name}", f"--how={how}", *flag_values], devices
        )

    cores = len(os.sched_getaffinity(0))
    several = jax.default_backend() == "cpu" and cores > 1
    needed = ["torch"]
    if not row_of(name).group.startswith(("cnn", "vit")):
        needed.append("torchvision")
    with_torch = all(importlib.util.find_spec(module) for module in needed)
    measured = {"before": child("torch") if with_torch else None}
    measured |= {how: child(how) for how in ("scan", "lanes")}
    measured["devices"] = child("devices", cores) if several else None
    measured["after"] = child("torch") if with_torch else None
    return measured | {"cost": child("cost")}


def row_of(name: str) -> Row:
    """Returns a row by name, with the command line's clients and steps."""
    row = ROWS.get(name, HTFE8)
    return row._replace(clients=_CLIENTS.value or row.clients, steps=_STEPS.value or row.steps)


HEAD = (
    "model", "PyTorch, before and after", "one client at a time", f"{LANES} lanes",
    "a device per core",
    "best / PyTorch", "compile s", "peak MB: ours, PyTorch", "GFLOP", "GFLOP/s (share)", "MB",
    "GB/s",
)  # fmt: skip


def cells(row: Row, measured: dict[str, dict | None], peak: dict) -> list[str]:
    """Returns a row's cells under `HEAD`."""
    total = row.clients * row.steps
    ms = {how: 1e3 * m["round"] / total for how, m in measured.items() if m and "round" in m}
    ours = {how: ms[how] for how in ("scan", "lanes", "devices") if how in ms}
    best = min(ours, key=ours.get)
    loop = min(ms["before"], ms["after"]) if "before" in ms else None
    cost, scan = measured["cost"], measured["scan"]
    flops, moved = (cost[key] / (ours[best] / 1e3) for key in ("flops", "bytes"))
    # A CPU's caches serve most of the counted bytes: a share of its memory's bandwidth would be
    # meaningless.
    bandwidth = "" if jax.default_backend() == "cpu" else f" ({moved / peak['bytes']:.0%})"
    return [
        row.title,
        f"{number(ms['before'])}, {number(ms['after'])}" if loop else "-",
        *(number(ms.get(how)) for how in ("scan", "lanes", "devices")),
        number(loop and ours[best] / loop),
        number(scan["first"] - scan["round"], 1),
        f"{scan['peak'] / 1e6:,.0f}, "
        + (f"{measured['after']['peak'] / 1e6:,.0f}" if loop else "-"),
        number(cost["flops"] / 1e9, 3),
        f"{number(flops / 1e9, 1)} ({flops / peak['flops']:.0%})",
        number(cost["bytes"] / 1e6, 1),
        number(moved / 1e9, 1) + bandwidth,
    ]


def report(measured: dict[str, dict[str, dict | None]], peak: dict) -> str:
    """Returns the measurements as Markdown."""
    loops = [m["after"] for m in measured.values() if m["after"]]
    lines = [
        f"Milliseconds of one client's training step, batch {BATCH}, {CLASSES} classes, SGD, "
        "float32.",
        machine(),
        f"PyTorch {loops[0]['version']}, {loops[0]['threads']} threads."
        if loops
        else "PyTorch is not installed.",
        f"The device's peak, from {peak['whence']}: {number(peak['flops'] / 1e9)} GFLOP/s, "
        f"{number(peak['bytes'] / 1e9)} GB/s. The ratio is to the faster of PyTorch's two; GFLOP "
        "and MB are of one step, rates and shares the best variant's. A CPU's caches serve most "
        "of what is read, beyond its memory's peak.",
        "",
        table(HEAD, [cells(row_of(name), m, peak) for name, m in measured.items()]),
    ]
    if "htfe8" in measured:
        row, seconds = row_of("htfe8"), []
        for how, figures in measured["htfe8"].items():
            if figures and "round" in figures:
                seconds.append(f"{how} {number(figures['round'])} s")
        lines += [
            "",
            f"HtFE8: {row.clients} clients, {row.steps} steps each, a whole round: "
            f"{', '.join(seconds)}.",
        ]
    return "\n".join(lines)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    names = [*_MODELS.value, "htfe8"] if _HTFE8.value else _MODELS.value
    if _HOW.value:
        print(json.dumps(measure_here(row_of(names[0]), _HOW.value)))
        return
    peak = in_a_process("benchmarks.zoo", ["--how=peaks"])
    publish(report({name: measure(name) for name in names}, peak))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
