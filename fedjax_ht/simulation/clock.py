"""What a round takes on the clients' simulated devices: told on the host, by exact bytes. No
compiled program knows of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.core.mesh import fetch
from fedjax_ht.core.round import ClientResult
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.roster import PADDING


class Times(NamedTuple):
    """Of a bucket's participants, by a layout.

    Attributes:
      rows: int64 [P], each one's row, see `roster.lay_out`.
      seconds: float64 [P], of its round.
      arrived: bool [P], whose upload came in time.
      late: bool [P], whose was too late; neither of who sent nothing.
      cost: of their uploads, [P].
    """

    rows: np.ndarray
    seconds: np.ndarray
    arrived: np.ndarray
    late: np.ndarray
    cost: WireCost


class OnItsWay(NamedTuple):
    """Uploads of earlier rounds, of all trials or of one.

    Attributes:
      left: float64 [..., num_clients], seconds of the next round after which a client's upload
        arrives; 0 where none is on its way.
      cost: of these uploads, int64 [..., num_clients].
    """

    left: np.ndarray
    cost: WireCost

    @property
    def busy(self) -> np.ndarray:
        """Who is not done with an earlier round, bool [..., num_clients]."""
        return self.left > 0

    def arriving(self, profile: Profile) -> np.ndarray:
        """Whose upload arrives in the next round, likewise."""
        return self.busy & ~profile.too_late(self.left)

    def arriving_cost(self, profile: Profile) -> WireCost:
        """Of one trial, of each of these, [m]."""
        return jax.tree.map(lambda x: x[self.arriving(profile)], self.cost)


def times_of(
    program: Program, parts: dict[str, tuple[np.ndarray, ClientResult]]
) -> dict[str, Times] | None:
    """Bucket name -> times, of the layout of its participants and their results; None where nothing
    takes time."""
    profile = program.options[0].profile
    if profile is None or not profile.rates():
        return None
    flops = np.zeros(program.train_counts.shape) if profile.flops is None else program.flops()
    told = fetch(
        {name: (r.arrived, r.downlink_cost, r.uplink_cost) for name, (_, r) in parts.items()}
    )
    found = {}
    for name, (rows, _) in parts.items():
        sent, down, up = told[name]
        trial, client = program.clients[name].roster.client(np.where(rows == PADDING, 0, rows))
        seconds = profile.seconds(client, flops[trial, client], down, up)
        late = sent & profile.too_late(seconds)
        found[name] = Times(rows, seconds, sent & ~late, late, up)
    return found


def simulated(
    profile: Profile, buckets: Sequence[tuple[np.ndarray, Times]], earlier: OnItsWay | None
) -> dict[str, Any]:
    """A trial's round, as fields of `report.RoundReport`.

    Args:
      profile: of the devices, on which something takes time.
      buckets: of each the participants' ids [m] and their times.
      earlier: what was on its way before the round; None where late uploads are lost.
    """
    ids, (_, seconds, arrived, late, _) = jax.tree.map(lambda *xs: np.concatenate(xs), *buckets)
    found = {"late": tuple(sorted(ids[late].tolist()))}
    if earlier is not None:
        there = earlier.arriving(profile)
        found["arrived_late"] = tuple(np.flatnonzero(there).tolist())
        more = earlier.left, there, earlier.busy & ~there
        seconds, arrived, late = map(np.append, (seconds, arrived, late), more)
    return found | {"seconds": profile.length(seconds, arrived, late)}
