"""What a client's training step costs on windows of signals: a plain PyTorch loop, and the real
round of `local`.

    python -m benchmarks.sensors --out=benchmarks/results/sensors.md

The networks are HtFLlib's, on windows of 128 steps of 9 signals, as UCI HAR has them. Each
measurement has a process of its own, PyTorch's before and after ours; without torch its columns are
empty.
"""

import json

import jax
import numpy as np
from absl import app, flags

from benchmarks import beside_torch
from benchmarks.beside_torch import BATCH, CLIENTS, CORES, HOW, STEPS
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.models.sensors import HARCNN, harcnn
from fedjax_ht.runner.cli import parse_flags

LENGTH, SIGNALS, CLASSES, FEATURES = 128, 9, 6, 512

_MODELS = flags.DEFINE_list("models", list(HARCNN), "What to measure.")


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows float32 [count, LENGTH, SIGNALS] and labels."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, LENGTH, SIGNALS), np.float32), rng.integers(
        0, CLASSES, count
    )


def torch_network(name: str):
    """The network in plain PyTorch, for windows [B, SIGNALS, 1, LENGTH]."""
    from torch import nn

    (channels, size), layers, before = HARCNN[name], [], SIGNALS
    for own in channels:
        layers += [nn.Conv2d(before, own, (1, size)), nn.ReLU(), nn.MaxPool2d((1, 2), 2)]
        before = own
    return nn.Sequential(
        *layers, nn.Flatten(), nn.AdaptiveAvgPool1d(FEATURES), nn.Linear(FEATURES, CLASSES)
    )


def measure_here(name: str, cores: int) -> dict:
    """What a child process measures, on so many cores."""
    beside_torch.pinned(cores)
    if HOW.value == "ours":
        windows, labels = samples(CLIENTS * STEPS.value * BATCH)
        dataset = Dataset("random windows", windows, labels, tuple("012345"))
        return beside_torch.ours(harcnn(name, 1, CLASSES, FEATURES), dataset)
    windows, labels = samples(STEPS.value * BATCH)
    windows = np.ascontiguousarray(windows.swapaxes(1, 2)[:, :, None])
    return beside_torch.theirs(lambda: torch_network(name), windows, labels, cores)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    cases = [(m, c) for m in _MODELS.value for c in CORES.value]
    if HOW.value:
        print(json.dumps(measure_here(cases[0][0], int(cases[0][1]))))
        return
    rows, version = [], ""
    for name, cores in cases:
        cells, version = beside_torch.row("benchmarks.sensors", [f"--models={name}"], cores)
        rows.append([name, *cells])
    what = f"windows of {LENGTH} steps of {SIGNALS} signals, {FEATURES} features, {CLASSES} classes"
    beside_torch.publish_rows(what, ("model", *beside_torch.HEAD), rows, version, "")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
