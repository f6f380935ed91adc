"""Runs the protocols with all simulators: `python -m benchmarks.peers --environments=DIR`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks.peers.protocols import PROTOCOLS, write_problem
from benchmarks.report import machine, number, publish, table
from fedjax_ht.simulation.options import SimulationOptions, choose_participants

_ENVIRONMENTS = flags.DEFINE_string(
    "environments", None, "A folder with a virtual environment for each peer."
)
_PEERS = flags.DEFINE_list(
    "peers", ["torch", "pfl", "flower", "blazefl", "flbench", "fedjax"], "Beside whom."
)
_PROTOCOLS = flags.DEFINE_list(
    "protocols", ["pfl", "blazefl"], f"What to play, of {', '.join(PROTOCOLS)}."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Warm rounds that are timed.")
_CORES = flags.DEFINE_integer("cores", 1, "Of the processor, for every side.")

# Turns off the engines' telemetry and progress bars.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "TQDM_DISABLE": "1"}


def sides() -> dict[str, list[str]]:
    """Returns the command of each side, ours before and after the others."""
    here, envs = Path(__file__).parent, Path(_ENVIRONMENTS.value)
    peers = {
        name: [str(envs / name / "bin" / "python"), str(here / f"with_{name}.py")]
        for name in _PEERS.value
    }
    ours = [sys.executable, str(here / "ours.py")]
    return {"fedjax_ht": ours} | peers | {"fedjax_ht again": ours}


def play(command: Sequence[str], name: str, problem: Path, folder: Path) -> dict[str, np.ndarray]:
    """Runs one side and returns its answer, see `side`."""
    answer = folder / "answer.npz"
    arguments = [name, str(problem), str(_ROUNDS.value), str(answer)]
    environment = os.environ | QUIET
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = os.getcwd()
    cores = sorted(os.sched_getaffinity(0))[: _CORES.value]
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, cores)), *command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    return dict(np.load(answer))


def row(side: str, answer: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> list[str]:
    """Returns a side's cells under `HEAD`; its weights are compared with those of `first`."""
    layers = [name for name in answer if name.startswith("after_")]
    apart = max(float(np.max(np.abs(answer[name] - first[name]))) for name in layers)
    seconds, wall = answer["seconds"], answer["wall"]
    spread = f"{number(seconds.min())} to {number(seconds.max())}"
    return [
        side, str(answer["versions"]), number(float(np.median(seconds))), spread,
        number(float(np.median(wall))),
        number(float(answer["peak"]) / 1e9), f"{apart:.1e}",
    ]  # fmt: skip


HEAD = (
    "side", "version", "processor's s a round", "least to most", "s a round", "GB",
    "weights apart after round 1",
)  # fmt: skip


def main(_) -> None:
    """Runs all protocols with all simulators, one after another."""
    text = [
        f"{machine()} {_CORES.value} of them for every side; medians of {_ROUNDS.value} warm "
        "rounds."
    ]
    for name in _PROTOCOLS.value:
        protocol = PROTOCOLS[name]
        options = SimulationOptions(participation=protocol.cohort / protocol.users)
        cohorts = [
            choose_participants(options, protocol.users, r)[0] for r in range(_ROUNDS.value + 1)
        ]
        with tempfile.TemporaryDirectory(prefix="peers") as folder:
            problem = Path(folder) / "problem.npz"
            write_problem(str(problem), protocol, np.stack(cohorts))
            answers = {}
            for side, command in sides().items():
                answers[side] = play(command, name, problem, Path(folder))
                print(name, side, answers[side]["seconds"], file=sys.stderr, flush=True)
        first = answers["fedjax_ht"]
        rows = [row(side, answer, first) for side, answer in answers.items()]
        text += ["", f"{name}: {protocol}", "", table(HEAD, rows)]
    publish("\n".join(text))


if __name__ == "__main__":
    app.run(main)
