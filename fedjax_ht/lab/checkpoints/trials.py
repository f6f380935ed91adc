"""Checkpoints of all runs of an entry: each run has its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedjax_ht.lab.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.simulation.simulation import Simulation, SimulationState


class TrialCheckpoints:
    """Saves and restores the runs of an entry; see `checkpoint.make_checkpointer`.

    Args:
      directory: folder of the first run's checkpoints; those of the others are beside it.
      simulations: the runs' simulations.
      keep: number of checkpoints of each run that stay.
      background: True writes in threads while the runs go on.
      numbers: number of each run among the entry's; None counts from 0.
    """

    def __init__(
        self,
        directory: Path,
        simulations: Sequence[Simulation],
        keep: int,
        background: bool,
        *,
        numbers: Sequence[int] | None = None,
    ):
        self._runs = []
        for trial, simulation in zip(numbers or range(len(simulations)), simulations):
            self._runs.append(
                make_checkpointer(directory, simulation, keep, background=background, trial=trial)
            )

    def restore(
        self, warn: Callable[[str], None]
    ) -> tuple[list[SimulationState | None], list[list[dict]]]:
        """Returns the newest state of each run that can be read, or None, and its history. They
        stand at different rounds where a process was killed while it saved them."""
        restored = [run.restore(warn) or (None, []) for run in self._runs]
        return [state for state, _ in restored], [history for _, history in restored]

    def save(self, states: Sequence[SimulationState], histories: Sequence[list[dict]]) -> None:
        """Writes a checkpoint of each run."""
        for run in reversed(range(len(self._runs))):
            self._runs[run].save(states[run], histories[run])

    def wait(self) -> None:
        """Returns when all that was saved is on disk."""
        for run in self._runs:
            run.wait()

    def check(self) -> None:
        """Raises the error of a write in the background since the last call."""
        for run in self._runs:
            run.check()
