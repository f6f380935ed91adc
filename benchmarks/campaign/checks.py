"""The campaign's checks against numbers made on CPU: methods' recorded rounds, and accuracies."""

import csv
import dataclasses
import json
import statistics
import time
from pathlib import Path

import jax
import numpy as np
import optax

from fedjax_ht.core.federation import Federation, make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.scoring_options import Scoring
from fedjax_ht.data.augment import compose
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.moments import normalised
from fedjax_ht.methods import METHODS
from fedjax_ht.models import model_group
from fedjax_ht.simulation.history import best, best_by, merged
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.rows import Row, evaluated
from fedjax_ht.simulation.runs import run_each
from fedjax_ht.simulation.simulation import Simulation, bound_simulation, make_simulation

# Of a number, or of FLOOR where it is smaller; of an accuracy, one sample of the four clients that
# have three each.
RELATIVE, FLOOR, ONE_SAMPLE = 1e-3, 1e-2, 1 / 12
LOOSER = {"fedgen released": 2e-2}  # Adam on tiny gradients
SHARES = Path("experiments/results/class_shares_shared.csv")
POINTS = 0.003  # that the mean over three seeds may differ by; seeds differ by up to 0.0007
FIXED_OPTIONS = {"fedral": {"blocks": 10}}


def differences(
    rows: list[dict], recorded: list[dict]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the differences of each round's numbers from the recorded ones.

    Returns:
      "round key" -> relative difference, of the numbers; and absolute difference, of accuracies.
    """
    numbers, accuracies = {}, {}
    for i, (row, before) in enumerate(zip(rows, recorded, strict=True)):
        if gone := before.keys() - row.keys():
            raise ValueError(f"round {i} has no {', '.join(sorted(gone))}")
        for key, value in before.items():
            off = abs(row[key] - value)
            if key.startswith("accuracy"):
                accuracies[f"{i} {key}"] = off
            else:
                numbers[f"{i} {key}"] = off / max(abs(value), FLOOR)
    return numbers, accuracies


def contract_rows(entry: str, lanes: int) -> list[dict]:
    """Plays the three rounds that tests/methods/recording.py records."""
    from tests.federations import federation_data, federation_for
    from tests.methods import recording

    name, released = entry.removesuffix(" released"), entry.endswith(" released")
    try:
        if not released:
            return recording.numbers(*recording.history(name, lanes=lanes))
        method, federation = recording.released_form(name), federation_for(name)
        options = recording.options_for(name, lanes=lanes)
        data = federation_data(federation)
        return recording.numbers(
            *recording.played(make_simulation(method, federation, data, options), 3)
        )
    finally:  # programs of earlier methods would only take memory
        recording.history.cache_clear()
        recording.simulation.cache_clear()
        jax.clear_caches()


def contract(entry: str, lanes: int) -> dict:
    """Returns the largest differences between a method's recorded rounds and the same made here."""
    recorded = json.loads(Path("tests/methods/recorded.json").read_text())[entry]
    numbers, accuracies = differences(contract_rows(entry, lanes), recorded)
    allowed = max(RELATIVE, LOOSER.get(entry, 0.0))

    def order(pair):
        # NaN is no number, and counts as larger than any.
        return np.inf if np.isnan(pair[1]) else pair[1]

    at, largest = max(numbers.items(), key=order)
    where, off = max(accuracies.items(), key=order, default=("", None))  # a few entries have none
    result = {
        "entry": entry,
        "lanes": lanes,
        "largest": largest,
        "at": at,
        "accuracy": off,
        "allowed": allowed,
    }
    if not largest <= allowed:
        result["wrong"] = f"{at} differs by {largest:.2g} of its value"
    elif off is not None and not off <= ONE_SAMPLE + 1e-6:
        result["wrong"] = f"{where} differs by {off:.3f}"
    return result


def class_shares(data: str, clients: int, **split) -> tuple[Dataset, Partition]:
    """Returns the data and split of experiments/configs/fashion_mnist_class_shares.py."""
    dataset = normalised(load_dataset(data, "data"), "half")
    return dataset, make_partition(
        "class_shares", dataset, clients, seed=1, classes_per_client=2, **split
    )


def local_training() -> LocalTraining:
    augment = compose(("flip", "random_erasing", "mean_padded_crop"))
    return LocalTraining(optax.sgd(0.01), batch_size=10, augmentation=augment)


def shares_method(name: str, training: LocalTraining) -> Method:
    return METHODS[name](training, **FIXED_OPTIONS.get(name, {}))


def shares_options(clients: int) -> SimulationOptions:
    return SimulationOptions(
        participation=min(1.0, 10 / clients), shared_init=True, scoring=Scoring("trained")
    )


def recorded_last(method: str) -> list[float]:
    """Returns the accuracy after the last round of the runs on CPU, by seed."""
    last: dict[str, dict] = {}
    with SHARES.open() as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["method"]) == ("fashion_mnist", method):
                before = last.get(row["seed"])
                if before is None or int(row["round"]) > int(before["round"]):
                    last[row["seed"]] = row
    return [float(last[seed]["accuracy"]) for seed in sorted(last)]


def federation_of(group: str, dataset: Dataset, clients: int) -> Federation:
    modules = model_group(group, dataset.num_classes, dataset.input_shape)
    return make_federation(modules, dataset.input_shape, dataset.num_classes, clients)


def accuracy(
    method: str,
    rounds: int = 500,
    trials: int = 3,
    data: str = "fashion_mnist",
    group: str = "cnn5",
    clients: int = 100,
    every: int = 20,
    limit: float = 400.0,
    **split,
) -> dict:
    """Runs a method in FedSSA's and FedRAL's setting, all seeds in one program, for at most `limit`
    seconds."""
    # Not at the top: it defines a flag, and `contract`'s tests are imported beside other flags.
    from benchmarks.report import peak_memory

    start, training = time.perf_counter(), local_training()
    bound = shares_method(method, training)
    dataset, partition = class_shares(data, clients, **split)
    federation = federation_of(group, dataset, clients)
    arranged = make_federation_data(dataset, partition, federation)
    simulations: list[Simulation] = []
    for seed in range(trials):
        options = dataclasses.replace(shares_options(clients), seed=seed)
        beside = simulations[0] if simulations else None
        simulations.append(
            bound_simulation(bound, federation, arranged, options=options, beside=beside)
        )

    def enough(states, histories: list[list[Row]]) -> bool:
        return time.perf_counter() - start > limit

    (state, *_), seeds = run_each(
        simulations,
        rounds,
        [None] * trials,
        histories=[()] * trials,
        eval_every=every,
        after_round=enough,
    )
    history = merged(seeds)
    later = [row["seconds_round"] for row in history if row["round"] > 1]
    result = {
        "method": method,
        "rounds": state.round,
        "asked": rounds,
        "lanes": simulations[0].lanes,
        "best": [best(rows).on_test["accuracy"] for rows in seeds],
        "last": [best(rows).last["accuracy"] for rows in seeds],
        "participants": [
            best_by(rows, "accuracy_participants")["accuracy_participants"] for rows in seeds
        ],
        "curve": [[row["round"], row["accuracy"]] for rows in seeds for row in evaluated(rows)],
        "first": history[trials]["seconds_round"],
        "round": statistics.median(later),
        "evaluation": statistics.median(
            [row["seconds_evaluation"] for row in history if row["seconds_evaluation"] > 0]
        ),
        "whole": time.perf_counter() - start,
        "peak": peak_memory(),
    }
    if data == "fashion_mnist" and state.round == rounds == 500:
        result["recorded"] = recorded_last(method)
        off = statistics.mean(result["last"]) - statistics.mean(result["recorded"])
        if not abs(off) <= POINTS:
            result["wrong"] = f"the last round is {100 * off:+.2f} points from the runs on CPU"
    elif state.round < rounds:
        result["wrong"] = f"{state.round} of {rounds} rounds in {limit:.0f} s"
    return result
