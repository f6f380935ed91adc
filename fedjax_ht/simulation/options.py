"""How a federation runs, whatever its method."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from fedjax_ht.core import wire
from fedjax_ht.core.attacks import Attack
from fedjax_ht.core.executor import Lanes
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.robust import Defence
from fedjax_ht.simulation.store import STORES

MAX_SEED = 2**32 - 1  # seeds cross into compiled functions as uint32


@dataclasses.dataclass(frozen=True)
class SimulationOptions:
    """Attributes:
      seed: of every random choice but the split of the data.
      participation: share of clients in a round, in (0, 1]; see `participants`.
      drop_rate: share of a round's participants whose uplink is lost after training, in [0, 1), rounded down.
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

    seed: int = 0
    participation: float = 1.0
    drop_rate: float = 0.0
    shared_init: bool = False
    evaluate: Literal["received", "trained"] = "received"
    evaluate_train: bool = False
    eval_batch_size: int | None = None
    global_statistics: Literal["batch", "training"] = "batch"
    lanes: Lanes = "auto"
    devices: int | None = None
    client_store: Literal["device", "host"] = "device"
    uplink: tuple[wire.Transform, ...] = ()
    downlink: tuple[wire.Transform, ...] = ()
    robust: tuple[Defence, ...] = ()
    attack: Attack | None = None

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be at least 0")
        if self.seed > MAX_SEED:
            raise ValueError(f"seed is {self.seed}; it must be at most {MAX_SEED}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation is {self.participation}; it must be above 0 and at most 1")
        if not 0 <= self.drop_rate < 1:
            raise ValueError(f"drop_rate is {self.drop_rate}; it must be at least 0 and below 1")
        if self.evaluate not in ("received", "trained"):
            raise ValueError(f"evaluate is {self.evaluate!r}; it must be 'received' or 'trained'")
        if self.global_statistics not in ("batch", "training"):
            raise ValueError(f"global_statistics is {self.global_statistics!r}; it must be 'batch' or 'training'")
        if self.client_store not in STORES:
            raise ValueError(f"client_store is {self.client_store!r}; it must be one of {', '.join(STORES)}")
        numbers = self.lanes.values() if isinstance(self.lanes, Mapping) else [self.lanes]
        if self.lanes != "auto" and not all(isinstance(n, int) and n > 0 for n in numbers):
            raise ValueError(f"lanes is {self.lanes!r}; it must be 'auto' or a positive integer")
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"devices is {self.devices}; it must be at least 1")
        if self.eval_batch_size is not None and self.eval_batch_size < 1:
            raise ValueError(f"eval_batch_size is {self.eval_batch_size}; it must be at least 1")

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
