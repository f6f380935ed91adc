"""The sections and fields of a config, with their defaults.

An option that is not given is None here, and 0, "" or "none" in config files, on the command line
and in config.json, as the comments say.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedjax_ht.core.annotations import (
    Count,
    NonNegative,
    NotGiven,
    Part,
    Positive,
    Rest,
    Seed,
    Whole,
)
from fedjax_ht.core.evaluation import NormStatistics, ScoredState
from fedjax_ht.core.wire import Late
from fedjax_ht.data.moments import Normalisation
from fedjax_ht.data.standardise import Standardise
from fedjax_ht.models.norm import NormKind
from fedjax_ht.trust.attacks import Attack
from fedjax_ht.trust.privacy import Delta, Unit

OptionalCount = Annotated[Whole | None, NotGiven(0)]
OptionalText = Annotated[str | None, NotGiven("")]


@dataclasses.dataclass(frozen=True)
class MethodConfig:
    name: str = "fedtgp"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of its factory


@dataclasses.dataclass(frozen=True)
class DatasetConfig:
    name: str = "fashion_mnist_10k"
    data_dir: str = "data"
    image_size: OptionalCount = None  # 0: as published
    text_length: OptionalCount = None  # tokens of a text; 0: 200, or as published
    # columns of csv:PATH and text:PATH; "" and (): by usual names (data/sources/columns.py)
    label: OptionalText = None
    features: tuple[str, ...] = ()  # with "-" before each: all but these
    group: OptionalText = None
    # by mean and deviation of the training samples; auto: tables, on: other floats, too
    standardise: Standardise = "auto"
    classes: tuple[str, ...] = ()  # names of the classes to keep; (): all
    subset: OptionalCount = None  # this many random images, the same for every seed; 0: all
    normalisation: Normalisation = "half"  # pixels to [-1, 1]; others: data/moments.py
    # rotate/4 or corrupt/3: so many domains of the images, by partition.seed (data/shift.py)
    shift: OptionalText = None
    # True lets a method's pre-trained part have been trained on this dataset
    seen_before: bool = False


@dataclasses.dataclass(frozen=True)
class PartitionConfig:
    kind: str = "practical"
    num_clients: Count = 20
    seed: Seed = 1
    per_trial: bool = False  # True: each trial has a split of its own, by seed + trial
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of its function


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    group: str = "cnn5"  # or module:function of your own (docs/own_model_and_data.md)
    feature_dim: OptionalCount = None  # 0: the group's own
    # architecture of the group that FML, FedKD, FedAPEN and FedMRL share; "": the smallest
    shared: OptionalText = None
    norm: NormKind = "batch"  # of models that normalise by batch
    # clients train slices of one network: rho=10 (DFRD's budgets), or 1,1/2,1/4 in turn
    rates: OptionalText = None
    scaler: bool = True  # of slices: divide by the width rate before every norm, in training
    output_relu: bool = False  # True: htc4 heads with the released code's ReLU behind the logits
    # a file that models start from, or architecture -> file (docs/models.md); "": random weights
    weights: Annotated[str | Mapping[str, str] | None, NotGiven("")] = None
    weights_head: bool = False  # True: classifiers, too, where they fit


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Local training; experiment/training.py makes `core.local_training.LocalTraining` of it.

    Both have batch_size, epochs, steps, shuffle and drop_remainder. They are two classes because
    LocalTraining holds optimiser, schedule and augmentation as functions, and a config file cannot.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"  # made new every round
    learning_rate: Positive = 0.01
    # by round: cosine/500 falls to 0 in 500 rounds, step/100/0.1 by 10 every 100
    schedule: str = "constant"
    momentum: Rest = 0.0  # of sgd
    beta1: Rest = 0.9  # of adam: how much of its mean gradient stays; the mean square keeps 0.999
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = 0.0  # of a batch's gradient; 0: no clipping
    batch_size: Count = 10
    epochs: Count = 1
    steps: OptionalCount = None  # this many steps instead of epochs; 0: epochs
    shuffle: bool = True
    drop_remainder: bool = True
    # flip, padded_crop, mean_padded_crop, resized_crop, random_erasing
    augmentation: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """The simulated devices of the clients, see docs/devices.md. A quantity is a number, or
    lognormal/MEDIAN/SIGMA, drawn once for each client; "": it is not simulated.

    They are not `simulation.profile.Profile`, which holds arrays of all clients: these are the
    texts and files by which experiment/devices.py draws or reads the arrays.
    """

    flops: OptionalText = None  # FLOP/s of training: 1e9, or lognormal/1e9/0.5
    up: OptionalText = None  # bytes/s of an upload
    down: OptionalText = None  # bytes/s of a download
    # bytes: each client trains the largest architecture of model.group that fits
    memory: OptionalText = None
    # a file with columns client and any of flops, up, down, memory, instead of those fields
    csv: OptionalText = None
    # in each round: 0.8, by chance; or csv:PATH with columns client, first_round, last_round
    available: OptionalText = None
    # simulated seconds of a round after which uploads are late; 0: none are
    deadline: NonNegative = 0.0
    late: Late = "lost"  # or "arrives": in the later round in which the client is done with it
    seed: Seed = 0  # of what is drawn; all trials have the same devices


@dataclasses.dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy, `trust.privacy.Privacy` and docs/privacy.md.

    They are two classes because Privacy also holds `secret`, which no config.json may contain.
    """

    unit: Annotated[Unit | None, NotGiven("none")] = None  # what noise hides
    clip: Positive = 1.0  # L2 norm of a client's update, or of a sample's gradient
    noise: NonNegative = 1.0  # standard deviation on the sum, in clip
    delta: Delta = 1e-5  # at which epsilon is reported


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Evaluations. No class of the library has these fields together: every, patience, sample and
    participants are arguments of `simulation.history.run`, the others are fields of
    `SimulationOptions`."""

    every: Count = 1  # rounds between evaluations
    mode: ScoredState = "received"
    # 0: as the device likes, or 64 where norms of a model go by the batch they see
    batch_size: OptionalCount = None
    patience: OptionalCount = None  # evaluations without a new best; 0: a run has all its rounds
    # of static_batch norms of a model on the server
    global_statistics: NormStatistics = "batch"
    train: bool = False  # also on training samples: train_accuracy
    # clients that every evaluation looks at, the same ones in a run; 0: all
    sample: OptionalCount = None
    # rounds between those whose participants are scored as training left them
    participants: Count = 1


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: Count = 10  # rounds
    keep: Count = 2


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    maps: Literal["auto", "none"] = "auto"  # pictures of features, also by t-SNE if installed


@dataclasses.dataclass(frozen=True)
class Config:
    """An experiment. By default FedTGP runs on the embedded images."""

    seed: Seed = 0  # initial weights, shuffles, participation; the split has its own
    trials: Count = 1  # seeds seed, seed + 1, ... in one program
    rounds: Count = 100
    method: MethodConfig = MethodConfig()
    # what else runs on the same split, see fedjax_ht/experiment/entries.py: "fedproto:weight=3.0"
    compare: tuple[str, ...] = ()
    entries: tuple[str | Mapping[str, Any], ...] = ()  # what runs instead of all these
    given: tuple[str, ...] = ()  # what a setting fixes of a method: "fedktl:generator=natural_32"
    # entries whose settings were searched: what "fedtgp@tuned" stands for
    tuned: tuple[str, ...] = ()
    tuned_on: str = ""  # on what they were searched
    # the space that was searched for each method: "fedproto: weight from 0.01 to 10"
    searched: tuple[str, ...] = ()
    dataset: DatasetConfig = DatasetConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    participation: Part = 1.0
    drop_rate: Rest = 0.0
    shared_init: bool = False
    # transforms, such as (("gaussian_noise", 0.05, 0.2),): scale s and coefficient p
    uplink: tuple[Any, ...] = ()
    downlink: tuple[Any, ...] = ()
    refuse_outliers: NonNegative = 1000.0  # times the round's median upload at most; 0: no bound
    # before the server, in order: (("norm_bound", 2.0), ("median",)), see trust/defences.py
    robust: tuple[Any, ...] = ()
    # clients that work against the federation; accuracies are then those of the others
    attack: Attack = dataclasses.field(default_factory=Attack)
    devices_profile: DevicesConfig = DevicesConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    # rounds in a row from which nothing arrives, after which a run stops; 0: it never does
    give_up: OptionalCount = 10
    evaluate: EvaluateConfig = EvaluateConfig()
    # clients side by side on a device; 0: chosen, see lanes.json in the run's folder
    lanes: OptionalCount = None
    # to shard the clients over; 0: all that the machine has, on CPU one a core, at most 8
    devices: OptionalCount = None
    # of matrix products and convolutions
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    client_store: Literal["device", "host"] = "device"
    # also measure the seconds of a round's stages, which then wait for each other
    profile: bool = False
    checkpoint: CheckpointConfig = CheckpointConfig()
    report: ReportConfig = ReportConfig()
