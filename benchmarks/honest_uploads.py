"""Measures how far honest clients' uploads are from their round's, and what outlier bounds cost.

    python -m benchmarks.honest_uploads

Every method that fits runs in twenty federations of ten clients with little data each, as trials of
one run: five degrees of heterogeneity by four seeds. The others are printed with the reason. Writes
honest_uploads.csv at the end: a line per method, with the largest of all `outliers.size_ratios` and
the number beyond some bounds.
"""

import contextlib
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from absl import app

from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.config.base import base_config, method_config, partition_config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.runs.plan import Run, plan
from fedjax_ht.lab.runs.play import simulate_trials
from fedjax_ht.methods import METHODS
from fedjax_ht.models.cnn import mlp
from fedjax_ht.simulation import serving
from fedjax_ht.simulation.engine import forget_engines

RESULT = Path(__file__).parent / "results/honest_uploads.csv"
CLIENTS, SAMPLES, ROUNDS = 10, 600, 4
ALPHAS, SEEDS = (0.05, 0.1, 0.3, 1.0, 100.0), (1, 2, 3, 4)
"""Concentrations of the Dirichlet split, from two classes per client to all, and its seeds."""
BOUNDS = (10, 20, 30, 100, 300, 1000)
SLICES = ("heterofl", "feddropout", "fedrolex", "dense", "fedftg", "dfrd")


def perceptron(num_classes, input_shape, feature_dim):
    """Returns a model group of one architecture."""
    return {"mlp": mlp(num_classes, (feature_dim or 16,))}


def arm_of(method: str) -> Run:
    """Builds a method's runs, with a differently split federation in each trial."""
    experiments = []
    for alpha in ALPHAS:
        for seed in SEEDS:
            config = base_config()
            config.method = method_config(method)
            config.partition = partition_config("dirichlet", CLIENTS)
            config.partition.options.alpha = alpha
            config.partition.seed = seed
            config.dataset.subset = SAMPLES
            config.dataset.seen_before = method == "fedktl"
            config.model.group = "mlp2"
            if method == "fedavg":
                config.model.group = "benchmarks.honest_uploads:perceptron"
            if method in SLICES:
                config.model.update(
                    {"group": "conv4_quarter", "rates": "1,1/2", "norm": "static_batch"}
                )
            config.refuse_outliers = 0.0
            config.trials = 1 + len(experiments)
            experiments.append(plan(config))
    partitions = tuple(built.partitions[0] for built in experiments)
    (run,) = experiments[-1].runs.values()
    return run._replace(partitions=partitions)


@contextlib.contextmanager
def recorded() -> Iterator[list[np.ndarray]]:
    """Yields the ratios of all uploads that servers screen within the block."""
    ratios: list[np.ndarray] = []
    size_ratios = serving.size_ratios

    def also_recorded(num_clients, received):
        sizes = size_ratios(num_clients, received)
        jax.debug.callback(lambda x: ratios.append(np.asarray(x).ravel()), sizes)
        return sizes

    forget_engines()  # programs record only for the block in which they are made
    with mock.patch.object(serving, "size_ratios", also_recorded):
        yield ratios
    forget_engines()


def measure(method: str) -> dict:
    """Runs a method's rounds; returns its line."""
    with recorded() as ratios:
        for simulation in simulate_trials(arm_of(method)):
            state = simulation.init()
            for _ in range(ROUNDS):
                state, _ = simulation.run_round(state, False)
        jax.effects_barrier()
    values = np.concatenate(ratios)
    compared = values[values > 0]
    line = {"method": method, "uploads": len(compared)}
    line["largest"] = f"{compared.max():.4g}" if len(compared) else 0
    for bound in BOUNDS:
        line[f"beyond {bound}"] = int((compared > bound).sum())
    return line


def main(_: list[str]) -> None:
    lines = []
    for method in METHODS:
        if method == "local":  # sends nothing
            continue
        begin = time.perf_counter()
        try:
            lines.append(measure(method))
        except ValueError as error:
            print(f"{method} is left out: {error}", flush=True)
            continue
        print(f"{time.perf_counter() - begin:.0f} s {lines[-1]}", flush=True)
    with atomic_open(RESULT) as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
