"""A deployment whose server and one client are killed repeatedly; pytest -s prints the counts."""

import random
import signal
import sys
import time
from pathlib import Path

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
    present_spans,
    rows_of,
    run_apart,
    start_client,
    start_server,
    trained_columns,
)
from tests.deploy.sites import assert_same_rows, simulation_of, small_config
from tests.federations import each_client

KILLS, ROUNDS, VICTIM = 25, 120, 2


def wait_for_a_row(folder, processes, before: int, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while len(rows_so_far(folder)) <= before and processes["server"].poll() is None:
        assert time.monotonic() < end, (folder / "server.log").read_text()[-3000:]
        time.sleep(0.1)


def rows_so_far(folder) -> list[str]:
    path = folder / "server" / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_deployment_killed_again_and_again_ends_as_the_simulation(tmp_path):
    """Rounds without the killed client are those in which it was away; all else is equal."""
    port, rng = made_ready(tmp_path, "fedproto", rounds=ROUNDS), random.Random(0)
    start = {"server": lambda: start_server(tmp_path, port)}
    start[VICTIM] = lambda: start_client(tmp_path, port, VICTIM)
    processes = {i: start_client(tmp_path, port, i) for i in range(4)} | {
        "server": start["server"]()
    }
    kills = dict.fromkeys(start, 0)
    try:
        while sum(kills.values()) < KILLS:
            if rng.random() < 0.7:  # else at a random moment of its start
                wait_for_a_row(tmp_path, processes, len(rows_so_far(tmp_path)))
            time.sleep(rng.uniform(0, 3))
            assert processes["server"].poll() is None, (
                f"{kills}: {(tmp_path / 'server.log').read_text()[-3000:]}"
            )
            victim = "server" if rng.random() < 0.75 else VICTIM
            processes[victim].send_signal(signal.SIGKILL)
            assert processes[victim].wait() == -signal.SIGKILL
            kills[victim] += 1
            processes[victim] = start[victim]()
        assert processes["server"].wait(600) == 0, (tmp_path / "server.log").read_text()[-3000:]
    finally:
        end_all(*processes.values())
    print(f"\n{kills} killed")
    run_apart("tests.deploy.test_kills", tmp_path)


def compare(folder: Path) -> None:
    """Compares a run's rows and its clients' last states with those of a simulation."""
    rows = rows_of(folder)
    missed = [row["round"] - 1 for row in rows[1:] if row["arrived"] == 3]
    print(f"{len(rows) - 1} rounds, in {len(missed)} of which client {VICTIM} was away")
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))
    spans = present_spans(ROUNDS, VICTIM, missed)
    profile = Profile(available=by_trace(4, spans))
    made, simulation = simulation_of(
        small_config("fedproto", rounds=ROUNDS), devices_profile=profile
    )
    federation = made.federation
    end, expected = run(simulation, ROUNDS)
    assert_same_rows(*trained_columns(expected, rows))
    for i, state in enumerate(each_client(federation, end)):
        (run_folder,) = (
            path for path in (folder / f"home{i}" / "states").iterdir() if path.is_dir()
        )
        after = 1 + max(k for k in range(ROUNDS) if not (i == VICTIM and k in missed))
        jax.tree.map(np.testing.assert_array_equal, load_state(run_folder, after, state), state)


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
