"""Parts that the scripts of all simulators share: arguments, CPU seconds, and the answer.

Imports NumPy alone.

Called as `script PROTOCOL PROBLEM ROUNDS ANSWER`: it plays the first round, whose weights are
compared, and ROUNDS more, each timed, and writes ANSWER, an npz with `seconds` and `wall` [ROUNDS],
`peak` (bytes, of all its processes), `versions`, and `after_<k>`, the weights after round 1 as
`write_problem` lays them out.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from protocols import PROTOCOLS, Protocol

_TICK = os.sysconf("SC_CLK_TCK")


def arguments() -> tuple[Protocol, dict[str, np.ndarray], int, str]:
    """Returns the protocol, the problem's arrays, rounds to time, and the answer's path."""
    name, problem, rounds, answer = sys.argv[1:]
    return PROTOCOLS[name], dict(np.load(problem)), int(rounds), answer


def first_weights(problem: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Returns weight_0, bias_0, weight_1 and so on."""
    layers = sum(name.startswith("weight_") for name in problem)
    return [problem[f"{kind}_{k}"] for k in range(layers) for kind in ("weight", "bias")]


class Marks:
    """Marks the ends of rounds, for an engine that runs all rounds by itself.

    It is called at the end of each round, the first one included, with a function that returns the
    server's weights, of all layers. A call's own time counts in no round.
    """

    def __init__(self) -> None:
        self._starts, self._ends, self._after, self._peak = [], [], [], 0

    def __call__(self, weights: Callable[[], Sequence[np.ndarray]]) -> None:
        self._ends.append((processor_seconds(), time.perf_counter()))
        if not self._after:
            self._after = [np.array(x) for x in weights()]
        # at each round, as an engine may end its processes before it returns
        self._peak = peak_memory()
        self._starts.append((processor_seconds(), time.perf_counter()))

    def write(self, rounds: int, answer: str, versions: str) -> None:
        """Writes the answer. Raises ValueError if the engine has not ended `rounds` + 1 rounds."""
        if len(self._ends) != rounds + 1:
            raise ValueError(
                f"{rounds + 1} rounds were to be played, {len(self._ends)} have ended."
            )
        seconds, wall = np.transpose(np.subtract(self._ends[1:], self._starts[:-1]))
        kinds = {f"after_{k}": x for k, x in enumerate(self._after)}
        np.savez(answer, seconds=seconds, wall=wall, peak=self._peak, versions=versions, **kinds)


def play(
    one_round: Callable[[int], None],
    weights: Callable[[], Sequence[np.ndarray]],
    rounds: int,
    answer: str,
    versions: str,
) -> None:
    """Runs and times `one_round(number)`, and writes the answer; `weights()` returns the server's,
    of all layers."""
    marks = Marks()
    for number in range(rounds + 1):
        one_round(number)
        marks(weights)
    marks.write(rounds, answer, versions)


def processor_seconds() -> float:
    """Returns user and system seconds of this process and its descendants, including ended ones."""
    total = 0
    for pid in family():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        # Its own and those of its ended children; nothing if it has ended itself.
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def peak_memory() -> int:
    """Returns the sum of all processes' peak bytes; shared memory counts in each."""
    total = 0
    for pid in family():
        for line in _read(pid, "status").splitlines():
            if line.startswith("VmHWM"):
                total += 1024 * int(line.split()[1])
    return total


def family() -> list[int]:
    """Returns the ids of this process and all that descend from it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _read(int(folder.name), "stat").rpartition(")")[2].split()
        if fields:
            parents[int(folder.name)] = int(fields[1])
    pids = [os.getpid()]
    for pid in pids:  # grows meanwhile
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended meanwhile
        return ""
