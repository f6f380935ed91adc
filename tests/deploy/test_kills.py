"""Deployments whose processes are killed, again and again; pytest -s prints the counts."""

import functools
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from fedjax_ht.deploy.client import load_state
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.profile import Profile, by_trace
from tests.deploy.processes import (
    end_all,
    made_ready,
    rows_of,
    run_apart,
    start_client,
    start_server,
    trained_columns,
    wait_for,
)
from tests.deploy.sites import assert_same_rows, simulation_of, small_config
from tests.federations import each_client


class Case(NamedTuple):
    """A deployment, and how it is killed.

    Attributes:
      clients, rounds: of the deployment.
      victims: process -> the weight of its choice.
      first_rows: rows before the first kill; with 2, all clients have said hello.
      after_row: the probability of waiting for the end of a round before a kill.
      seconds: the mean delay before a kill.
      most: the maximum number of kills.
    """

    clients: int
    rounds: int
    victims: dict[int | str, float]
    first_rows: int
    after_row: float
    seconds: float
    most: float


CASES = {
    "server_and_one": Case(4, 120, {"server": 0.75, 2: 0.25}, 0, 0.7, 1.5, 25),
    "any_process": Case(8, 30, dict.fromkeys(["server", *range(8)], 1), 2, 0, 15, math.inf),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_deployment_killed_again_and_again_ends_as_the_simulation(tmp_path, name):
    """Its rounds are those of the simulation in which the same clients were away."""
    case, rng, kills, begin = CASES[name], random.Random(1), Counter(), time.monotonic()
    port = made_ready(tmp_path, "fedproto", rounds=case.rounds, clients=case.clients)
    start = {i: functools.partial(start_client, tmp_path, port, i) for i in range(case.clients)}
    start["server"] = functools.partial(start_server, tmp_path, port)
    processes = {one: begun() for one, begun in start.items()}

    def wait_for_rows(count):
        wait_for(tmp_path, processes["server"], lambda rows: len(rows) >= count)

    try:
        if case.first_rows:
            wait_for_rows(case.first_rows)
        while kills.total() < case.most:
            if rng.random() < case.after_row:  # else maybe at a moment of its start
                wait_for_rows(len(rows_of(tmp_path)) + 1)
            time.sleep(rng.expovariate(1 / case.seconds))
            if processes["server"].poll() is not None:
                break
            (victim,) = rng.choices(list(case.victims), list(case.victims.values()))
            processes[victim].send_signal(signal.SIGKILL)
            assert processes[victim].wait() == -signal.SIGKILL
            kills["server" if victim == "server" else "client"] += 1
            processes[victim] = start[victim]()
        assert processes["server"].wait(600) == 0, (tmp_path / "server.log").read_text()[-3000:]
    finally:
        end_all(*processes.values())
    assert kills.total() == case.most or (case.most == math.inf and kills["client"])
    print(f"\n{dict(kills)} killed in {time.monotonic() - begin:.0f} s")
    run_apart("tests.deploy.test_kills", tmp_path, name)


def present_clients(folder: Path) -> list[set[int]]:
    """Reads out of the server's audit log whose replies each round has that counts."""
    present, replied = {}, {}
    for line in (folder / "server" / "audit.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "started":
            replied = {}
        elif event["event"] == "reply" and event["kind"] == "train":
            replied.setdefault(event["round"], set()).add(event["client"])
        elif event["event"] == "round":
            present[event["round"]] = replied.pop(event["round"])  # again, after a kill
    return [present[number] for number in sorted(present)]


def compare(folder: Path, case: Case) -> None:
    """Compares a run's rows and its clients' last states with those of a simulation."""
    rows, present = rows_of(folder), present_clients(folder)
    away = sum(case.clients - len(clients) for clients in present)
    print(f"{len(rows) - 1} rounds, with {away} of {case.rounds * case.clients} replies missing")
    assert [row["round"] for row in rows] == list(range(case.rounds + 1))
    spans = [(client, n, n) for n, clients in enumerate(present) for client in clients]
    profile = Profile(available=by_trace(case.clients, spans))
    config = small_config("fedproto", rounds=case.rounds, clients=case.clients)
    made, simulation = simulation_of(config, devices_profile=profile)
    end, expected = run(simulation, case.rounds)
    assert_same_rows(*trained_columns(expected, rows))
    for i, state in enumerate(each_client(made.federation, end)):
        (states,) = (path for path in (folder / f"home{i}" / "states").iterdir() if path.is_dir())
        after = 1 + max(n for n, clients in enumerate(present) if i in clients)
        jax.tree.map(np.testing.assert_array_equal, load_state(states, after, state), state)


if __name__ == "__main__":
    compare(Path(sys.argv[1]), CASES[sys.argv[2]])
