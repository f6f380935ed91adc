"""A short run on a given number of devices, as a program of its own: the number of CPU devices is
fixed at start-up.

python -m tests.simulation.device_run DEVICES [PROCESS PROCESSES PORT]: prints one JSON object,
{case: metrics}.
"""

import json
import sys

import jax
import numpy as np

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.profile import Profile, by_chance
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    NUM_CLIENTS,
    TRAINING,
    federation_data,
    mixed_federation,
    uniform_federation,
)

DEVICES = Profile(by_chance(NUM_CLIENTS, 0.8), up=np.linspace(10, 40, NUM_CLIENTS), deadline=7.3)
CASES = {  # name: method, options
    "prototypes, states on the host, simulated devices": (
        "fedproto",
        {"participation": 0.6, "lanes": 1, "client_store": "host", "devices_profile": DEVICES},
    ),
    "whole models, states on the devices": ("fedavg", {"lanes": 2}),
}


def run(name: str, options: dict, devices: int) -> dict:
    """Metrics after two rounds, and a number for all states, read back and written again."""
    federation = uniform_federation() if name == "fedavg" else mixed_federation()
    method, data = METHODS[name](TRAINING), federation_data(federation)
    options = SimulationOptions(seed=1, devices=devices, scoring=Scoring(batch_size=4), **options)
    simulation = make_simulation(method, federation, data, options)
    state, metrics, bytes_sent = simulation.init(), [], []
    for _ in range(2):
        state, report = simulation.run_round(state)
        metrics.append([*report.metrics.values(), *report.server_metrics.values(), report.arrived])
        cost = *report.uplink, *report.downlink
        bytes_sent.append([*cost, report.absent, report.seconds, *report.late])
    for name, changed in state.changed.items():  # every state survives the way out and back
        rows = np.arange(len(changed))[::-1]
        clients = simulation.read_clients(state, name, rows)
        state = simulation.write_clients(state, name, rows, clients)
    scores = simulation.evaluate(state)

    def total(tree):
        return sum(float(np.ravel(x) @ np.sin(np.arange(x.size))) for x in jax.tree.leaves(tree))

    states = []
    for bucket in federation.buckets:
        rows = np.arange(len(federation.members(bucket)))
        states.append(simulation.read_clients(state, bucket.name, rows))
    return {
        "metrics": metrics,
        "bytes": bytes_sent,
        "accuracy": [None if np.isnan(a) else a for a in scores.accuracy["test"][method.rules[0]]],
        "states": [total(s) for s in states],
        "server": total(jax.device_get(state.server)),
    }


if __name__ == "__main__":
    devices, *process = map(int, sys.argv[1:])
    jax.config.update("jax_platforms", "cpu")
    if process:
        index, count, port = process
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_num_cpu_devices", devices // count)
        jax.distributed.initialize(f"localhost:{port}", count, index)
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    print(json.dumps({case: run(*settings, devices) for case, settings in CASES.items()}))
