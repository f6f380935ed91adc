"""The state of a run between two rounds."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.selection import Reports


class Waiting(NamedTuple):
    """Uploads that are on their way between two rounds.

    Attributes:
      sent: bucket name -> (uplink, ClientInfo) as they were sent, stacked over the bucket's rows,
        on the server's device; arbitrary for clients without an upload on its way.
      left: float64 [num_clients], seconds into the next round after which a client's upload
        arrives; 0 if none is on its way.
      cost: the uploads' cost on the wire, int64 [num_clients].
      losses: mean loss of their training, float64 [num_clients]; NaN if the method has none.
    """

    sent: dict[str, tuple[PyTree, ClientInfo]]
    left: np.ndarray
    cost: WireCost
    losses: np.ndarray

    @property
    def unfinished(self) -> np.ndarray:
        """Clients that have not finished an earlier round, bool [num_clients]."""
        return self.left > 0


class SimulationState(NamedTuple):
    """The state of a run: everything needed to continue it.

    Attributes:
      round: number of completed rounds.
      server: the method's server state.
      clients: bucket name -> stored states. On one device they are stacked over the bucket's rows:
        its clients by ascending id. On several, the order depends on the split: move states to
        another by `read_clients` and `write_clients`. They are meaningless if clients keep nothing
        between rounds.
      last_round: int32 [num_clients], the last round in which the server reached each; -1 for
        never.
      changed: bucket name -> int32 [rows], completed rounds when a row's state last changed; 0 for
        never. Buckets whose clients keep nothing between rounds are absent.
      waiting: uploads that arrive in a later round; None if late ones are lost.
      reports: losses and sample counts of the clients; None if no selection reads them.
    """

    round: int
    server: PyTree
    clients: dict[str, PyTree]
    last_round: np.ndarray
    changed: dict[str, np.ndarray]
    waiting: Waiting | None = None
    reports: Reports | None = None

    def __repr__(self) -> str:
        models = f"{len(self.last_round)} clients of {', '.join(self.clients)}"
        return f"<SimulationState after {self.round} rounds: {models}>"


@checked
def copy_state(state: SimulationState) -> SimulationState:
    """Copies a state to keep it: a round changes the arrays of its argument in place.

    Example:
      >>> best = fl.copy_state(state)  # in an `after_round` of `fl.run`
      >>> simulation.evaluate(best)
    """

    def copied(x):
        return x.copy() if isinstance(x, jax.Array | np.ndarray) else x

    copy = jax.tree.map(copied, state)
    # A restored state may have a NumPy integer as round.
    return copy._replace(round=int(state.round))
