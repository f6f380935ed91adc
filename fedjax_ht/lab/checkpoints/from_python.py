"""Saves and loads a simulation that was made in Python, as a run by config keeps it."""

from collections.abc import Sequence
from pathlib import Path

from fedjax_ht.lab.checkpoints.checkpoint import make_checkpointer
from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.simulation import Simulation, SimulationState

CHECKPOINTS = "checkpoints"  # as in the folder of an entry


def save(
    folder: Path | str, simulation: Simulation, state: SimulationState, history: Sequence[Row]
) -> None:
    """Writes a checkpoint of a simulation, whole or not at all, and its rows.

    The folder has what an entry of a run by config has: checkpoints/, metrics.jsonl, metrics.csv
    and clients.csv. The two newest checkpoints stay; those whose rows are not the first of
    `history` are of another course, and are moved into set_aside_1 beside them.

        >>> state, history = fl.run(simulation, rounds=10)  # doctest: +SKIP
        >>> fl.save("runs/mine", simulation, state, history)  # doctest: +SKIP
        >>> state, history = fl.load("runs/mine", simulation)  # doctest: +SKIP
        >>> fl.run(simulation, 20, state=state, history=history)  # doctest: +SKIP

    Args:
      folder: the folder to write to.
      simulation: the simulation that the state is of.
      state: the state, which stays valid.
      history: all rows until that state, as `fl.run` returns them.

    Raises:
      OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    rows = list(history)
    checkpointer = make_checkpointer(folder / CHECKPOINTS, simulation)
    checkpointer.follow(rows)
    checkpointer.save(state, rows)
    write_runs([rows], folder)


def load(folder: Path | str, simulation: Simulation) -> tuple[SimulationState, list[Row]]:
    """Reads the newest state that can be read of a folder that `save` wrote, and its rows.

    A run that goes on from them is the run that never stopped, bit for bit. The simulation must be
    made as the saved one was: shapes are compared, data and settings are not.

    Args:
      folder: the folder.
      simulation: a simulation of the same method, federation, data and options.

    Raises:
      ValueError: the folder has no checkpoint that fits the simulation and can be read. One line.
    """
    restored = make_checkpointer(Path(folder) / CHECKPOINTS, simulation).restore()
    if restored is None:
        raise ValueError(
            f"{folder} has no checkpoint of this simulation that can be read; fl.save(folder, "
            "simulation, state, history) writes one"
        )
    return restored
