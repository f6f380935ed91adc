"""How a federation runs, whatever its method."""

import dataclasses
from typing import Literal

import numpy as np

from fedjax_ht.core import wire
from fedjax_ht.core.attacks import Attack
from fedjax_ht.core.bounds import Count, Part, Rest, Seed, check_fields
from fedjax_ht.core.executor import Lanes
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.robust import Defence


@dataclasses.dataclass(frozen=True)
class SimulationOptions:
    """How a federation runs.

    Attributes:
      seed: of every random choice but the split of the data.
      participation: share of clients in a round; see `participants`.
      drop_rate: share of a round's participants whose uplink is lost after training, rounded down.
      shared_init: all clients of one architecture start from the same weights (released code), else each from its own.
      evaluate: "received" scores a client after it took the newest downlink, "trained" as its training left it.
      evaluate_train: also score clients on their training samples, "train_accuracy".
      eval_batch_size: samples that one forward pass of evaluation takes; None is 64 where the server has a model of its
        own, and else as the device likes (`local_training.forward_batch`). It matters where norms go by the batch.
      global_statistics: what "static_batch" norms of the server's model go by in its evaluation: "batch", the
        samples of the pass, or "training", all clients' training samples (see `core.statistics`).
      lanes: clients side by side on a device: a number, bucket name -> number, or "auto", see `lanes.choose_lanes`.
      devices: how many to shard the clients over; None takes all that there are.
      client_store: "device" or "host", where the states of clients at rest live.
      uplink, downlink: transforms of what crosses the wire, in order.
      robust: defences before the server, in order, see `core.robust`.
      attack: what some clients do instead of what the method says, or None; they are left out of all accuracies of a
        round, and `attackers` says who they are.

    Raises:
      ValueError: a value is outside its range.
    """

    seed: Seed = 0
    participation: Part = 1.0
    drop_rate: Rest = 0.0
    shared_init: bool = False
    evaluate: Literal["received", "trained"] = "received"
    evaluate_train: bool = False
    eval_batch_size: Count | None = None
    global_statistics: Literal["batch", "training"] = "batch"
    lanes: Lanes = "auto"
    devices: Count | None = None
    client_store: Literal["device", "host"] = "device"
    uplink: tuple[wire.Transform, ...] = ()
    downlink: tuple[wire.Transform, ...] = ()
    robust: tuple[Defence, ...] = ()
    attack: Attack | None = None

    def __post_init__(self):
        check_fields(self)

    def participants(self, num_clients: int) -> int:
        """Clients in a round: the nearest integer to the share, halves rounded up, at least one."""
        return max(1, int(np.floor(self.participation * num_clients + 0.5)))


def choose_participants(options: SimulationOptions, num_clients: int, round: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct ids that take part in a round, ascending, drawn uniformly; and which of them are dropped.

    A pure function of (seed, round), so that a resumed run draws the same. Returns int64 [m], bool [m].
    """
    m = options.participants(num_clients)
    ids = host_generator(options.seed, Purpose.PARTICIPATION, round).permutation(num_clients)[:m]
    lost = host_generator(options.seed, Purpose.DROPOUT, round).permutation(ids)[: int(options.drop_rate * m)]
    return np.sort(ids), np.isin(np.sort(ids), lost)
