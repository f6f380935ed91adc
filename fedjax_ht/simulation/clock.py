"""The simulated seconds of a round on the clients' devices, computed on the host by exact bytes.

No compiled program knows of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.mesh import collect, fetch
from fedjax_ht.core.trees import join_trees, take
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.answers import Answers, Times
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.roster import Roster


class Devices(NamedTuple):
    """The clients' simulated devices, and what is known of the clients on them.

    Attributes:
      profile: None where nothing is simulated.
      flops: () -> float64 [trials, num_clients], of a round; traced where it is first asked for.
      mesh: the devices that really run.
      rosters: bucket name -> its clients' places; empty where no client is on this machine.
      num_clients: of the federation.
    """

    profile: Profile | None
    flops: Callable[[], np.ndarray]
    mesh: Mesh
    rosters: dict[str, Roster]
    num_clients: int


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
    def unfinished(self) -> np.ndarray:
        """Clients that are not done with an earlier round, bool [..., num_clients]."""
        return self.left > 0

    def arriving(self, profile: Profile) -> np.ndarray:
        """Clients whose upload arrives in the next round, bool [..., num_clients]."""
        return self.unfinished & ~profile.too_late(self.left)

    def arriving_cost(self, profile: Profile) -> WireCost:
        """Costs of one trial's uploads that arrive in the next round, [m]."""
        return take(self.cost, self.arriving(profile))


def on_time(devices: Devices, answers: dict[str, Answers]) -> dict[str, Answers]:
    """Adds simulated times to answers; uploads that miss the deadline no longer arrive. The
    identity where nothing takes simulated time."""
    profile = devices.profile
    if profile is None or not profile.rates():
        return answers
    flops = None
    if profile.flops is not None:
        flops = devices.flops()
    messages = {}
    for name, part in answers.items():
        result = part.result
        messages[name] = (result.arrived, result.downlink_cost, result.uplink_cost)
    timed = {}
    for name, (sent, down, up) in fetch(messages).items():
        part, trials, clients = answers[name], *answers[name].places[1:]
        work = np.zeros(len(clients)) if flops is None else flops[trials, clients]
        seconds = profile.seconds(clients, work, down, up)
        late = sent & profile.too_late(seconds)
        arrived = sent & ~late
        timed[name] = part._replace(
            received=part.received._replace(arrived=collect(devices.mesh, arrived)),
            result=part.result._replace(arrived=arrived),
            times=Times(seconds, late, up),
        )
    return timed


def simulated(
    profile: Profile,
    buckets: Sequence[tuple[np.ndarray, tuple[Times, np.ndarray]]],
    earlier: OnItsWay | None,
) -> dict[str, Any]:
    """Returns the simulated fields of a trial's `report.RoundReport`.

    Args:
      profile: of the devices, on which something takes time.
      buckets: each one's participants' ids [m], their times, and bool [m], whose upload arrived.
      earlier: what was on its way before the round; None where late uploads are lost.
    """
    ids, (times, arrived) = join_trees(np.concatenate, buckets)
    seconds, late = times.seconds, times.late
    fields = {"late": tuple(sorted(ids[late].tolist()))}
    if earlier is not None:
        arriving = earlier.arriving(profile)
        fields["arrived_late"] = tuple(np.flatnonzero(arriving).tolist())
        seconds = np.append(seconds, earlier.left)
        arrived = np.append(arrived, arriving)
        late = np.append(late, earlier.unfinished & ~arriving)
    return fields | {"seconds": profile.length(seconds, arrived, late)}
