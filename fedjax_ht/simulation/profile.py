"""The clients' devices: which clients are reachable in a round, and how long their rounds take.

Seconds here are simulated. They depend only on counts and rates, so that a run has the same ones on
any machine and after it resumes.
"""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.check.options import Count, NonNegative, Seed, Share, check_fields, checked
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.method import Method
from fedjax_ht.core.wire import Late, WireCost

Available = Callable[[int], np.ndarray]
"""(round, from 0) -> bool [num_clients], the clients that can be reached in it.

It must be pure: a resumed run calls it again.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """Speed and availability of the clients' devices. All trials of a run have the same devices.

    Attributes:
      available: (round) -> bool [num_clients], the available clients; None: all, in every round.
      flops: FLOP/s of training, float [num_clients]; None: training takes no time.
      up, down: bytes/s of uploads and downloads, float [num_clients]; None: they take no time.
      deadline: seconds of a round after which the server stops waiting; 0: it waits for all.
      late: the treatment of an upload after the deadline. "lost" drops it: the client keeps its
        training, and the server gets nothing. "arrives" delivers it in the later round in which the
        client finishes, see `simulation.clock`. Until then the client takes part in no other round.

    Raises:
      ValueError: a rate is not positive, a deadline is set without rates, or late uploads arrive
        without a deadline.
    """

    available: Available | None = None
    flops: np.ndarray | None = None
    up: np.ndarray | None = None
    down: np.ndarray | None = None
    deadline: NonNegative = 0.0
    late: Late = "lost"

    def __post_init__(self):
        check_fields(self, "devices_profile.")
        for name, rates in self.rates().items():
            if np.ndim(rates) != 1 or not np.all((np.asarray(rates) > 0) & np.isfinite(rates)):
                raise ValueError(
                    f"devices_profile.{name} must have one number above 0 for each client"
                )
        if self.deadline and not self.rates():
            raise ValueError(
                f"devices_profile.deadline is {self.deadline}, but nothing takes time; set flops, "
                "up or down"
            )
        if self.late == "arrives" and not self.deadline:
            raise ValueError(
                "devices_profile.late is 'arrives', but nothing is late without a deadline; set "
                "deadline"
            )

    def rates(self) -> dict[str, np.ndarray]:
        """Returns the simulated rates by name."""
        rates = {"flops": self.flops, "up": self.up, "down": self.down}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def check(self, method: Method, num_clients: int) -> None:
        """Checks the profile against a method.

        Raises:
          ValueError: there is not one rate per client, or late uploads arrive but would be
            meaningless.
        """
        for name, rates in self.rates().items():
            if len(rates) != num_clients:
                raise ValueError(
                    f"devices_profile.{name} has {len(rates)} numbers; there are {num_clients} "
                    "clients"
                )
        if self.late == "arrives" and method.wire.redrawn:
            raise ValueError(
                f"devices_profile.late is 'arrives', but an upload of {method.name} is only valid "
                "in its own round, as its server uses what it sent in that round; use 'lost'"
            )

    def seconds(
        self, clients: np.ndarray, flops: np.ndarray, down: WireCost, up: WireCost
    ) -> np.ndarray:
        """Computes each participant's seconds in a round, float64 [m].

        They are the sum of download, training and upload.

        Args:
          clients: int [m], ids.
          flops: float64 [m], FLOPs of their training in the round.
          down, up: costs of their downloads and uploads, arrays [m].
        """
        # uint32 on the device, where payload and metadata may each be just below 4 GiB
        up, down = (WireCost(*np.asarray(cost, np.int64)) for cost in (up, down))
        work = {"flops": flops, "up": up.bytes, "down": down.bytes}
        stages = []
        for name, rate in self.rates().items():
            stages.append(np.asarray(work[name], np.float64) / np.asarray(rate)[clients])
        return np.sum(stages, axis=0)

    def too_late(self, seconds: np.ndarray) -> np.ndarray:
        """Returns which uploads, given their seconds, miss the deadline: bool [m]."""
        if not self.deadline:
            return np.zeros(len(seconds), bool)
        return seconds > self.deadline

    def length(self, seconds: np.ndarray, arrived: np.ndarray, late: np.ndarray) -> float:
        """Computes the seconds of a round, until the last upload arrives.

        They are the deadline if an upload missed it, and 0 if there was none.

        Args:
          seconds: float64 [m], arrival time of each upload.
          arrived, late: bool [m], which of them arrived, and which missed the deadline.
        """
        if late.any():
            return float(self.deadline)
        return float(np.max(seconds, initial=0, where=arrived))

    def reachable(self, num_clients: int, round: int) -> np.ndarray:
        """Returns the clients that can be reached in a round (from 0): bool [num_clients].

        Raises:
          ValueError: `available` returns something else.
        """
        if self.available is None:
            return np.ones(num_clients, bool)
        reachable = np.asarray(self.available(round))
        if reachable.dtype != bool or reachable.shape != (num_clients,):
            raise ValueError(
                f"devices_profile.available gives {reachable.dtype} {reachable.shape} for round "
                f"{round}; it must be bool ({num_clients},)"
            )
        return reachable


@checked
def by_chance(num_clients: Count, share: Share, seed: Seed = 0) -> Available:
    """Makes each client available in each round, independently, with probability `share`."""

    def available(round: int) -> np.ndarray:
        return host_generator(seed, Purpose.AVAILABILITY, round).random(num_clients) < share

    return available


def by_trace(num_clients: int, spans: Iterable[tuple[int, int, int]]) -> Available:
    """Makes clients available in given spans of rounds.

    Args:
      num_clients: number of clients in the federation.
      spans: (client, first round, last round), from 0 and inclusive. A client may have several
        spans; without any it is never available.

    Raises:
      ValueError: there is no such client, or a span is not a triple that ascends. One line.
    """
    spans = list(spans)
    for span in spans:
        if len(span) != 3 or not all(isinstance(n, int | np.integer) for n in span):
            raise ValueError(
                f"a span is {short(span)}; it must be (client, first round, last round), integers"
            )
        client, first, last = span
        if not (0 <= client < num_clients and 0 <= first <= last):
            raise ValueError(
                f"client {client} is available from round {first} to {last}; clients are 0 to "
                f"{num_clients - 1}, and the first round is at least 0 and at most the last"
            )

    trace = np.array(spans, np.int64).reshape(-1, 3)

    def available(round: int) -> np.ndarray:
        clients, first, last = trace.T
        reachable = np.zeros(num_clients, bool)
        reachable[clients[(first <= round) & (round <= last)]] = True
        return reachable

    return available
