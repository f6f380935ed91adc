"""A deployment of eight clients in which any process is killed at any moment, again and again.

pytest -s prints the counts.
"""

import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("flwr")

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

CLIENTS, ROUNDS, SECONDS = 8, 30, 15.0
"""SECONDS are those between two kills, on average."""


@pytest.mark.slow
def test_any_process_may_be_killed_at_any_moment(tmp_path):
    """All rounds are those of the simulation in which the same clients were away."""
    port = made_ready(tmp_path, "fedproto", rounds=ROUNDS, clients=CLIENTS)
    rng, kills, begin = random.Random(1), Counter(), time.monotonic()
    start = {i: lambda i=i: start_client(tmp_path, port, i) for i in range(CLIENTS)}
    start["server"] = lambda: start_server(tmp_path, port)
    processes = {name: begun() for name, begun in start.items()}
    try:
        wait_for(tmp_path, processes["server"], lambda rows: len(rows) > 1)  # all have said hello
        while processes["server"].poll() is None:
            time.sleep(rng.expovariate(1 / SECONDS))
            victim = rng.choice(list(start))
            if processes["server"].poll() is not None:
                break
            processes[victim].send_signal(signal.SIGKILL)
            processes[victim].wait()
            kills["server" if victim == "server" else "client"] += 1
            processes[victim] = start[victim]()
        log = (tmp_path / "server.log").read_text()
        assert processes["server"].wait() == 0, log[-3000:]
    finally:
        end_all(*processes.values())
    print(f"\n{dict(kills)} killed in {time.monotonic() - begin:.0f} s")
    run_apart("tests.deploy.test_soak", tmp_path)


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
    return [present[number] for number in range(1, ROUNDS + 1)]


def compare(folder: Path) -> None:
    """Compares a run's rows with those of a simulation."""
    rows, present = rows_of(folder), present_clients(folder)
    away = sum(CLIENTS - len(clients) for clients in present)
    print(f"{len(rows) - 1} rounds, with {away} of {ROUNDS * CLIENTS} replies missing")
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))
    spans = [(client, n, n) for n, clients in enumerate(present) for client in clients]
    profile = Profile(available=by_trace(CLIENTS, spans))
    config = small_config("fedproto", rounds=ROUNDS, clients=CLIENTS)
    _, simulation = simulation_of(config, devices_profile=profile)
    assert_same_rows(*trained_columns(run(simulation, ROUNDS)[1], rows))


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
