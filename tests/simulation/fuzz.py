"""Random federations, each played twice: on one device without a stop, and dealt to devices, lanes
and stores by chance and resumed elsewhere after its first round. Nothing may tell the two apart.

    JAX_NUM_CPU_DEVICES=8 JAX_PLATFORMS=cpu python -m tests.simulation.fuzz FIRST COUNT

prints a line a case, and ends with 1 if one of them differs. The number of CPU devices is fixed at
start-up.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import numpy as np

import fedjax_ht as fl
from fedjax_ht.data.client_data import FederationData, arranged
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from tests.federations import NUM_CLASSES, NUM_CLIENTS, SHAPE, federation_for
from tests.standard import method_of

ROUNDS, DEVICES = 2, 8


class Case(NamedTuple):
    """A federation and its run, and how the second run differs."""

    method: str
    counts: np.ndarray  # training samples, int [NUM_CLIENTS, NUM_CLASSES]
    common: dict  # options that both have
    halves: list[dict]  # options of the first round, and of the rest


def draw(number: int) -> Case:
    rng = np.random.default_rng(number)
    shape = (NUM_CLIENTS, NUM_CLASSES)
    counts = rng.integers(0, 5, shape) * rng.integers(0, 2, shape)
    counts[rng.integers(NUM_CLIENTS)] = 0
    counts[rng.integers(NUM_CLIENTS)] = np.eye(NUM_CLASSES, dtype=int)[0]
    common = {
        "seed": int(rng.integers(1000)),
        "participation": float(rng.choice([0.3, 0.6, 1.0])),
        "drop_rate": float(rng.choice([0.0, 0.25])),
        "scoring": fl.Scoring(str(rng.choice(["received", "trained"])), batch_size=4),
    }
    halves = [
        {
            "devices": int(rng.integers(1, DEVICES + 1)),
            "lanes": int(rng.choice([1, 2, 3, 32])),
            "client_store": str(rng.choice(["device", "host"])),
        }
        for _ in range(2)
    ]
    method = str(rng.choice(list(fl.METHODS)))
    common["devices_profile"] = devices(number, method)
    return Case(method, counts, common, halves)


def devices(number: int, method: str) -> fl.Profile | None:
    """Returns the devices of every second case; they draw numbers of their own."""
    rng = np.random.default_rng([number, 1])
    up, down = (rng.lognormal(4, 1, NUM_CLIENTS) for _ in range(2))
    deadline, late = float(rng.choice([0.0, 3.0])), str(rng.choice(["lost", "arrives"]))
    if not deadline or method_of(method).wire.redrawn:
        late = "lost"
    if number % 2:
        return None
    available = fl.by_chance(NUM_CLIENTS, 0.7, number)
    return fl.Profile(available, up=up, down=down, deadline=deadline, late=late)


def data_of(case: Case, federation: fl.Federation) -> FederationData:
    rng = np.random.default_rng(case.common["seed"])
    labels, partition = [], []
    for client_counts in case.counts:
        classes = [
            rng.permutation(np.repeat(np.arange(NUM_CLASSES), client_counts)),
            rng.integers(0, NUM_CLASSES, rng.integers(4)),
        ]
        start = len(labels) + np.array([0, len(classes[0])])
        labels.extend(np.concatenate(classes))
        train, test = (np.arange(s, s + len(c)) for s, c in zip(start, classes))
        partition.append(fl.ClientIndices(train, np.array([], int), test))
    y = np.array(labels, np.int32)
    x = rng.integers(0, 80, (len(y), *SHAPE)) + 40 * y[:, None, None, None]
    dataset = fl.Dataset("fuzz", x.astype(np.uint8), y, tuple("abcde"))
    return arranged(dataset, tuple(partition), federation)


def play(case: Case, halves: list[dict], folder: Path) -> dict:
    """A run whose halves have options of their own: what it reports, exact and in floats."""
    federation, method = federation_for(case.method), method_of(case.method)
    data = data_of(case, federation)
    exact, floats = [], []
    for half, options in enumerate(halves):
        options = fl.SimulationOptions(**case.common, **options)
        simulation = fl.make_simulation(method, federation, data, options)
        checkpointer = Checkpointer(folder / "checkpoints", simulation)
        state = checkpointer.restore()[0] if half else simulation.init()
        for _ in range(ROUNDS // len(halves)):
            state, report = simulation.run_round(state)
            exact += [report.participants.tolist(), report.arrived, report.uplink, report.downlink]
            exact += [report.absent, report.seconds, report.late, report.arrived_late]
            floats.append([*report.metrics.values(), *report.server_metrics.values()])
        checkpointer.save(state, [])
    scores = simulation.evaluate(state)
    floats.append([scores.accuracy["test"][rule] for rule in method.rules])
    states = {}
    for name, rows in state.changed.items():
        states[name] = simulation.read_clients(state, name, np.arange(len(rows)))
    return {"exact": exact, "floats": jax.device_get((floats, states, state.server))}


def difference(case: Case) -> str:
    """Describes the first difference of the two runs; "" for none."""
    plain = {"devices": 1, "lanes": 1, "client_store": "device"}
    with tempfile.TemporaryDirectory() as folder:
        first = play(case, [plain], Path(folder) / "one")
        other = play(case, case.halves, Path(folder) / "other")
    if first["exact"] != other["exact"]:
        return f"participants or bytes: {first['exact']} and {other['exact']}"
    try:
        chex.assert_trees_all_close(first["floats"], other["floats"], rtol=1e-4, atol=1e-5)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def main(first: int, count: int) -> int:
    jax.config.update("jax_default_matmul_precision", "float32")
    differing = 0
    for number in range(first, first + count):
        case = draw(number)
        finding = difference(case)
        differing += bool(finding)
        run = f"{case.method} {case.common} {case.halves}"
        print(f"case {number}: {run}: {finding or 'same'}", flush=True)
        jax.clear_caches()
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
