"""Times a client's training step and a plain PyTorch loop, and makes the rows of a table.

A benchmark that uses this has its own command line, whose child processes measure one row; see
`benchmarks.text`.
"""

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
import optax
from absl import flags

from benchmarks.report import in_a_process, machine, number, peak_memory, publish, table
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.methods.local import local
from fedjax_ht.models import SplitModel
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation

BATCH, CLIENTS = 10, 4

CORES = flags.DEFINE_list(
    "cores", [str(n) for n in range(1, len(os.sched_getaffinity(0)) + 1)], "Cores of each."
)
STEPS = flags.DEFINE_integer("steps", 10, "Steps of each client.")
ROUNDS = flags.DEFINE_integer(
    "rounds", 6, "Rounds of each measurement; the first compiles and is not counted."
)
HOW = flags.DEFINE_enum(
    "how", None, ["ours", "torch"], "Measure this here and print JSON; for the child."
)

HEAD = (
    "cores", "PyTorch, before and after", "ours", "ours / PyTorch",
    "processor's ms: ours, PyTorch", "compile s",
    "peak MB: ours, PyTorch",
)  # fmt: skip


def pinned(cores: int) -> None:
    """Restricts this process to so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def ours(module: SplitModel, dataset: Dataset) -> dict:
    """Times rounds of `local` with this model.

    The samples are dealt to `CLIENTS` clients in order, in `STEPS` batches each.

    Returns:
      "first", seconds of the first round, which compiles; "round" and "processor", medians of wall
      and processor seconds of the later ones; "peak", bytes.
    """
    shares, none = np.arange(len(dataset.labels)).reshape(CLIENTS, -1), np.array([], np.int64)
    federation = make_federation(
        {"model": module}, dataset.input_shape, dataset.num_classes, num_clients=CLIENTS
    )
    data = arranged(dataset, tuple(ClientIndices(rows, none, none) for rows in shares), federation)
    options = SimulationOptions(devices=len(jax.devices()))
    simulation = make_simulation(
        local(LocalTraining(optax.sgd(0.01), BATCH)), federation, data, options
    )
    state, seconds, processor_seconds = simulation.init(), [], []
    for _ in range(ROUNDS.value):
        start, spent = time.perf_counter(), time.process_time()
        state, _ = simulation.run_round(state)
        jax.block_until_ready(state.clients)
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(time.process_time() - spent)
    medians = {
        "round": statistics.median(seconds[1:]),
        "processor": statistics.median(processor_seconds[1:]),
    }
    return medians | {"first": seconds[0], "peak": peak_memory()}


def theirs(model: Callable, inputs: np.ndarray, labels: np.ndarray, cores: int) -> dict:
    """Times a PyTorch loop over `CLIENTS` modules made by `model`, on `STEPS` batches.

    Returns:
      "round", "processor" and "peak" as in `ours`, and torch's "version".
    """
    import torch

    from benchmarks.torch_loop import train_in_turn

    torch.set_num_threads(cores)
    # A gradient that vanishes over 200 places becomes denormal, which an Intel CPU computes ten
    # times slower; XLA also flushes to zero.
    torch.set_flush_denormal(True)
    x, y = (torch.from_numpy(a.reshape(STEPS.value, BATCH, *a.shape[1:])) for a in (inputs, labels))
    models, seconds, processor_seconds = [model() for _ in range(CLIENTS)], [], []
    for _ in range(ROUNDS.value):
        spent = time.process_time()
        seconds.append(train_in_turn(models, x, y))
        processor_seconds.append(time.process_time() - spent)
    medians = {
        "round": statistics.median(seconds[1:]),
        "processor": statistics.median(processor_seconds[1:]),
    }
    return medians | {"peak": peak_memory(), "version": torch.__version__}


def row(benchmark: str, arguments: Sequence[str], cores: str) -> tuple[list[str], str]:
    """Measures a row in child processes.

    Args:
      benchmark: module whose children measure.
      arguments: arguments of the children, which select the measurement.
      cores: number of cores of each side.

    Returns:
      The cells under `HEAD`, and torch's version.
    """

    def child(how: str) -> dict:
        flag_values = [f"--{flag.name}={flag.value}" for flag in (STEPS, ROUNDS)]
        devices = int(cores) if how == "ours" else 1
        return in_a_process(
            benchmark, [*arguments, f"--cores={cores}", f"--how={how}", *flag_values], devices
        )

    # PyTorch runs before and after ours: the machine may be slower at one of the times.
    with_torch = importlib.util.find_spec("torch") is not None
    before = [child("torch")] if with_torch else []
    our = child("ours")
    loops = [*before, *([child("torch")] if with_torch else [])]
    steps = CLIENTS * STEPS.value / 1e3
    ms = our["round"] / steps
    cells = [cores, ", ".join(number(loop["round"] / steps) for loop in loops) or "-", number(ms)]
    compiling = number(our["first"] - our["round"], 1)
    if not loops:
        our_processor, our_peak = number(our["processor"] / steps), f"{our['peak'] / 1e6:,.0f}"
        return [*cells, "-", f"{our_processor}, -", compiling, f"{our_peak}, -"], ""
    fastest = min(loop["round"] for loop in loops) / steps
    processor = [our["processor"], min(loop["processor"] for loop in loops)]
    peaks = [our["peak"], loops[-1]["peak"]]
    cells += [
        number(ms / fastest),
        ", ".join(number(seconds / steps) for seconds in processor),
        compiling,
        ", ".join(f"{peak / 1e6:,.0f}" for peak in peaks),
    ]
    return cells, loops[-1]["version"]


def publish_rows(
    what: str, head: Sequence[str], rows: Sequence[Sequence[str]], version: str, note: str
) -> None:
    """Publishes the page: what was measured, where and how, and the table."""
    lines = [
        f"Milliseconds of one client's training step: {CLIENTS} clients, batch {BATCH}, {what}, "
        "SGD, float32.",
        machine(),
        f"PyTorch {version}, as many threads as cores{note}."
        if version
        else "PyTorch is not installed.",
        "Ours is the round of `local`, a device a core. The ratio is to the faster of PyTorch's "
        "two.",
        f"The machine's load was {os.getloadavg()[2]:.1f} in the last 15 minutes, ours included: "
        "above the number of "
        "cores others ran, too, and the processor's own time says more than the clock's.",
        "",
        table(head, rows),
    ]
    publish("\n".join(lines))
