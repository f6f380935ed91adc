"""Options of a federation that do not depend on the method."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from fedjax_ht.check.options import (
    Count,
    NonNegative,
    Part,
    Rest,
    Seed,
    check_fields,
    named_options,
)
from fedjax_ht.core import wire
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.simulation.profile import Profile
from fedjax_ht.simulation.selection import Reports, Selection, chosen
from fedjax_ht.trust.options import Attack, Defence, Privacy

Lanes = Count | Mapping[str, Count]
"""Clients that run in parallel: a number for all buckets, or one per bucket."""


@named_options
@dataclasses.dataclass(frozen=True)
class SimulationOptions:
    """The options of a federation.

    Attributes:
      seed: the seed of all random choices except the split of the data.
      participation: share of clients in a round; see `participants`.
      drop_rate: share of a round's participants whose uplink is lost after training, rounded down.
      shared_init: True starts all clients of one architecture from the same weights (released
        code); False from different ones.
      scoring: the scored state, samples and statistics. A `batch_size` of None is 64 if the server
        has its own model, else a number for the device (`batches.forward_batch`). It affects norms
        that use batch statistics.
      lanes: parallel clients on a device: a number, bucket name -> number, or None for the rule of
        `lanes.simulation_lanes`.
      devices: number of devices to shard the clients over; None: all, but one of two CPUs.
      client_store: "device" or "host", the memory of clients' states between rounds.
      uplink, downlink: transforms of the messages on the wire, in order.
      refuse_outliers: bound on the largest entry and the norm of an upload, in multiples of the
        round's median; an upload beyond it does not reach the server, see
        `outliers.without_outliers`. 0 rejects none, as with `privacy`.
      robust: defences before the server, in order, see `trust.defences`.
      attack: the attack of some clients on the federation; `Attack()` is none. Accuracies of a
        round exclude attackers; `trust.attacks.attackers` draws them.
      time_stages: True also reports the seconds of a round's stages, which then run sequentially.
      devices_profile: the clients' devices; None if all clients are available in every round.
      privacy: the noise that hides clients or uploads, and its clipping, which also applies to
        attackers; or None.
      select: the choice of a round's participants by earlier reports, see
        `simulation.selection`; None draws them uniformly.
      new_share: share of clients that never train. They are drawn by the seed, take part in no
        round, are excluded from all counts, and are scored separately (`Evaluation.new`).

    Raises:
      ValueError: a value is out of range; or options conflict. Privacy of clients, where the server
        only sees a sum, excludes changing or comparing single uploads. Privacy excludes profiles
        that limit participation, and selections. New clients exclude privacy and "trained" scores.
    """

    seed: Seed = 0
    participation: Part = 1.0
    drop_rate: Rest = 0.0
    shared_init: bool = False
    scoring: Scoring = dataclasses.field(default_factory=Scoring)
    lanes: Lanes | None = None
    devices: Count | None = None
    client_store: Literal["device", "host"] = "device"
    uplink: tuple[wire.Transform, ...] = ()
    downlink: tuple[wire.Transform, ...] = ()
    refuse_outliers: NonNegative = 1000.0
    robust: tuple[Defence, ...] = ()
    attack: Attack = dataclasses.field(default_factory=Attack)
    time_stages: bool = False
    devices_profile: Profile | None = None
    privacy: Privacy | None = None
    select: Selection | None = None
    new_share: Rest = 0.0

    def __post_init__(self):
        check_fields(self)
        check_fields(self.attack, "attack.")
        if self.new_share and (self.privacy is not None or self.scoring.state == "trained"):
            raise ValueError(
                f"new_share is {self.new_share}, for scores of clients that never train; remove "
                "privacy, which counts draws of all clients, and scoring.state 'trained'"
            )
        if self.privacy is not None and self.privacy.unit == "client":
            for field in ("uplink", "robust"):
                if getattr(self, field):
                    raise ValueError(
                        f"privacy.unit is 'client', which only hides sums; {field} must then be "
                        "empty"
                    )
        if self.privacy is not None and self.select is not None:
            raise ValueError(
                f"select is {self.select.name}, which sees the losses of single clients, but "
                "epsilon is only known for uniform draws; remove it or privacy"
            )
        if self.privacy is not None and self.devices_profile is not None:
            for field in ("available", "deadline"):
                if getattr(self.devices_profile, field):
                    raise ValueError(
                        f"devices_profile.{field} is set, but epsilon is only known if all "
                        "clients can take part; remove it or privacy"
                    )

    @property
    def outlier_bound(self) -> float:
        """`refuse_outliers`; 0 with `privacy`, which clips uploads and may hide single ones."""
        return self.refuse_outliers if self.privacy is None else 0.0

    def participants(self, num_clients: int) -> int:
        """Returns the number of a round's participants, at least one.

        It is the share of clients that train, rounded to the nearest integer (halves up).
        """
        training = num_clients - int(np.floor(self.new_share * num_clients + 0.5))
        return max(1, int(np.floor(self.participation * training + 0.5)))

    def reachable(self, num_clients: int, round: int) -> np.ndarray:
        """Returns the clients that can be reached in a round, bool [num_clients]."""
        if self.devices_profile is None:
            return np.ones(num_clients, bool)
        return self.devices_profile.reachable(num_clients, round)


def draw_new_clients(seed: int, federation: Federation) -> np.ndarray:
    """Draws the clients that never train, bool [num_clients], as many as in `Federation.new`."""
    generator = host_generator(seed, Purpose.NEW_CLIENTS, 0)
    new = np.zeros(federation.num_clients, bool)
    for bucket, count in zip(federation.buckets, federation.new):
        new[generator.permutation(federation.members(bucket))[:count]] = True
    return new


def choose_participants(
    options: SimulationOptions,
    num_clients: int,
    round: int,
    free: np.ndarray | None = None,
    reports: Reports | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a round's participants, and which of them are dropped.

    A pure function of (seed, round, free, reports), so that a resumed run draws the same.

    Args:
      options: the trial's options.
      num_clients: number of clients in the federation.
      round: the round, from 0.
      free: bool [num_clients], clients that may be drawn; None for all that can be reached.
      reports: the clients' reports; only `options.select` reads them.

    Returns:
      Distinct ids, ascending, int64 [m], and bool [m], which of them are dropped. If fewer clients
      than requested are free, all of them take part.
    """
    generator = host_generator(options.seed, Purpose.PARTICIPATION, round)
    if free is None:
        free = options.reachable(num_clients, round)
    participants = options.participants(num_clients)
    if options.select is None:
        order = generator.permutation(num_clients)
        ids = order[free[order]][:participants]
    else:
        assert reports is not None  # with a selection, states have them
        ids = chosen(options.select, generator, reports, np.flatnonzero(free), participants)
    shuffled = host_generator(options.seed, Purpose.DROPOUT, round).permutation(ids)
    dropped = shuffled[: int(options.drop_rate * len(ids) + 1e-9)]
    return np.sort(ids), np.isin(np.sort(ids), dropped)
