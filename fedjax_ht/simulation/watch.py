"""The start of `fl.run`, and warnings of faults in its rounds."""

import warnings
from collections.abc import Callable, Sequence

from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.rows import Row
from fedjax_ht.simulation.state import SimulationState

SHOWN = 10  # names in a warning


def check_start(state: SimulationState | None, history: Sequence[Row]) -> None:
    """Refuses a history that does not end where the state stands: two runs would be joined."""
    if not history:
        return
    if state is None:
        raise ValueError(
            f"history has {len(history)} rows, and no state goes with it; give both, as run "
            "returned them: run(simulation, rounds, state=state, history=history)"
        )
    last, done = history[-1]["round"], int(state.round)
    if last != done:
        raise ValueError(
            f"history ends with round {last}, and state stands at round {done}; give the rows "
            f"until then: [row for row in history if row['round'] <= {done}]"
        )


class Watch:
    """Passes on the rows of a run, and warns of clients and servers that are not finite, and of
    training that diverges, each once.

    Args:
      progress_fn: takes every row, or None.
      divergence: the watch for training that diverges; it has read the rows of an earlier course of
        the run.
    """

    def __init__(self, progress_fn: Callable[[Row], None] | None, divergence: Divergence):
        self.progress_fn, self.divergence = progress_fn, divergence
        self.named: set[str] = set()

    def __call__(self, row: Row) -> None:
        for line in (*self._not_finite(row), *self.divergence.notes(row)):
            # at the caller of `run`, behind the check of its arguments
            warnings.warn(f"round {row['round']}: {line}", RuntimeWarning, stacklevel=8)
        if self.progress_fn is not None:
            self.progress_fn(row)

    def _not_finite(self, row: Row) -> list[str]:
        """Returns a line on the clients, and the server, whose results are first not finite."""
        names = [f"client {i}" for i in row.get("not_finite", ())]
        if not row.get("server_finite", True):
            names.append("the server")
        new = [name for name in names if name not in self.named]
        if not new:
            return []
        self.named |= set(new)
        listed = ", ".join(new[:SHOWN])
        if len(new) > SHOWN:
            listed += f" and {len(new) - SHOWN} more"
        return [
            f"the results of {listed} are not finite and were left out; "
            "simulation.find_fault(state) says where a round first goes wrong"
        ]
