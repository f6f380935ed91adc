"""Sections of a config on how a federation runs and is scored: devices, privacy, evaluations."""

import dataclasses
from typing import Annotated, Literal

from fedjax_ht.core.annotations import (
    Count,
    NonNegative,
    NotGiven,
    OptionalCount,
    OptionalText,
    Positive,
    Seed,
)
from fedjax_ht.core.wire import Late
from fedjax_ht.trust.options import Delta, Unit

Tracker = Literal["tensorboard", "wandb", "mlflow"]


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """The simulated devices of the clients, see docs/devices.md. A quantity is a number, or
    lognormal/MEDIAN/SIGMA, drawn once for each client; "": it is not simulated.

    They are not `simulation.profile.Profile`, which holds arrays of all clients: these are the
    texts and files by which lab/runs/devices.py draws or reads the arrays.

    Attributes:
      flops: Speed of training in FLOP/s: 1e9, or lognormal/1e9/0.5; "": not simulated.
      up: Speed of uploads in bytes/s, written as flops is.
      down: Speed of downloads in bytes/s, written as flops is.
      memory: Bytes of a client's memory, written as flops is: each client trains the largest
        architecture of model.group that fits.
      csv: File with columns client and any of flops, up, down, memory, instead of those fields.
      available: Chance that a client can be reached in a round, 0.8; or csv:PATH with columns
        client, first_round, last_round; "": always.
      deadline: Simulated seconds of a round after which uploads are late; 0: none are.
      late: Fate of late uploads: "lost", or "arrives" in the later round in which the client is
        done.
      seed: Seed of what is drawn; all trials have the same devices.
    """

    flops: OptionalText = None
    up: OptionalText = None
    down: OptionalText = None
    memory: OptionalText = None
    csv: OptionalText = None
    available: OptionalText = None
    deadline: NonNegative = 0.0
    late: Late = "lost"
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy, `trust.privacy.Privacy` and docs/privacy.md.

    They are two classes because Privacy also holds `secret`, which no config.json may contain.

    Attributes:
      unit: Unit that noise hides: a client, from those who see the server's state; a client's
        upload, from the server, too; or a single sample. none: no noise.
      clip: L2 norm at which a client's update, or a sample's gradient, is clipped.
      noise: Standard deviation of the noise on the sum, in units of clip.
      delta: Probability delta at which epsilon is reported.
    """

    unit: Annotated[Unit | None, NotGiven("none")] = None
    clip: Positive = 1.0
    noise: NonNegative = 1.0
    delta: Delta = 1e-5


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """The rounds and clients of evaluations, which are arguments of `simulation.history.run`; what
    they score is another section, `core.scoring_options.Scoring`.

    Attributes:
      every: Rounds between evaluations.
      patience: Evaluations without a new best accuracy, after which a run ends; 0: all its rounds.
      sample: Number of clients that every evaluation scores, the same ones in a run; 0: all.
      participants: Rounds between those whose participants are scored as training left them.
    """

    every: Count = 1
    patience: OptionalCount = None
    sample: OptionalCount = None
    participants: Count = 1


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of a run.

    Attributes:
      every: Rounds between checkpoints.
      keep: Number of checkpoints that are kept.
    """

    every: Count = 10
    keep: Count = 2


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """The report of a run.

    Attributes:
      maps: Pictures of the features, also by t-SNE where scikit-learn is installed ("auto"), or
        none.
    """

    maps: Literal["auto", "none"] = "auto"
