"""The options of a federation, whatever its method."""

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
"""Clients that run side by side: a number for all buckets, or one a bucket."""


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
      scoring: state, samples and statistics of the scores. A `batch_size` of None is 64 if the
        server has its own model, and else a number for the device (`batches.forward_batch`). It
        matters for norms with statistics of the batch.
      lanes: clients side by side on a device: a number, bucket name -> number, or None, for which
        `lanes.choose_lanes` has a rule.
      devices: number of devices to shard the clients over; None: all, but one of two CPUs.
      client_store: "device" or "host", the memory of clients' states between rounds.
      uplink, downlink: transforms of the messages on the wire, in order.
      refuse_outliers: bound on the largest entry and the length of an upload, in multiples of the
        round's median; an upload beyond it does not reach the server, see
        `outliers.without_outliers`. 0 refuses none, as does `privacy`.
      robust: defences before the server, in order, see `trust.defences`.
      attack: the attack of some clients on the federation; `Attack()` is none. Accuracies of a
        round exclude attackers; `trust.attacks.attackers` draws them.
      time_stages: True also reports the seconds of a round's stages, which then run one after
        another.
      devices_profile: the clients' devices; None if all clients are available in every round.
      privacy: the noise that hides clients or uploads, and its clipping, also of attackers; or
        None.
      select: the choice of a round's participants by earlier reports, see
        `simulation.selection`; None draws them uniformly.
      new_share: share of the clients that never train: they are drawn by the seed, take part in
        no round, count nowhere, and are scored apart, as they come (`Evaluation.new`).

    Raises:
      ValueError: a value is outside its range, or privacy of clients, for which a sum is all that a
        server sees, stands beside what changes or compares single uploads; or privacy beside a
        profile by which some cannot take part, or beside a selection; or new clients beside
        privacy or scores of what training left.
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
                f"new_share is {self.new_share}, for scores of clients that never train; leave "
                "out privacy, which counts draws of all, and scoring.state 'trained'"
            )
        if self.privacy is not None and self.privacy.unit == "client":
            for field in ("uplink", "robust"):
                if getattr(self, field):
                    raise ValueError(
                        f"privacy.unit is 'client', which hides sums alone; {field} must then be "
                        "empty"
                    )
        if self.privacy is not None and self.select is not None:
            raise ValueError(
                f"select is {self.select.name}, which sees the losses of single clients, and "
                "epsilon is known only for uniform draws; leave it out, or privacy"
            )
        if self.privacy is not None and self.devices_profile is not None:
            for field in ("available", "deadline"):
                if getattr(self.devices_profile, field):
                    raise ValueError(
                        f"devices_profile.{field} is set, and epsilon is known only where all "
                        "clients can take part; leave it out, or privacy"
                    )

    @property
    def outlier_bound(self) -> float:
        """`refuse_outliers`; 0 beside `privacy`, which clips uploads and may hide single ones."""
        return self.refuse_outliers if self.privacy is None else 0.0

    def participants(self, num_clients: int) -> int:
        """Returns the number of a round's participants: the share of those that train, rounded to
        the nearest integer (halves up), at least one."""
        training = num_clients - int(np.floor(self.new_share * num_clients + 0.5))
        return max(1, int(np.floor(self.participation * training + 0.5)))

    def reachable(self, num_clients: int, round: int) -> np.ndarray:
        """Returns the clients that can be reached in a round, bool [num_clients]."""
        if self.devices_profile is None:
            return np.ones(num_clients, bool)
        return self.devices_profile.reachable(num_clients, round)


def draw_new_clients(seed: int, federation: Federation) -> np.ndarray:
    """Draws the clients that never train, of each bucket as many as `Federation.new` says, bool
    [num_clients]."""
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
    """Draws the clients that take part in a round, and those of them that are dropped.

    A pure function of (seed, round, free, reports), so that a resumed run draws the same.

    Args:
      options: the trial's options.
      num_clients: number of clients in the federation.
      round: the round's number, from 0.
      free: bool [num_clients], clients that may be drawn; None: all that can be reached.
      reports: what clients have reported; only `options.select` reads it.

    Returns:
      Distinct ids, ascending, int64 [m], and bool [m], which of them are dropped. Of fewer free
      clients than are asked for, all take part.
    """
    generator = host_generator(options.seed, Purpose.PARTICIPATION, round)
    if free is None:
        free = options.reachable(num_clients, round)
    participants = options.participants(num_clients)
    if options.select is None:
        order = generator.permutation(num_clients)
        ids = order[free[order]][:participants]
    else:
        assert reports is not None  # a state has them where a selection is on
        ids = chosen(options.select, generator, reports, np.flatnonzero(free), participants)
    shuffled = host_generator(options.seed, Purpose.DROPOUT, round).permutation(ids)
    dropped = shuffled[: int(options.drop_rate * len(ids))]
    return np.sort(ids), np.isin(np.sort(ids), dropped)
