"""The sections and fields of a config, with their defaults, bounds and meanings.

An unset field is None here. Config files, the command line and config.json write it as 0, "" or
"none", as the field's meaning says. `fedjax-ht list fields` shows all fields.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.named_numbers import Specs
from fedjax_ht.check.options import (
    Count,
    NonNegative,
    NotGiven,
    OptionalCount,
    OptionalText,
    Part,
    Positive,
    Rest,
    Seed,
)
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.wire import Late
from fedjax_ht.data.standardise import Standardise
from fedjax_ht.lab.config.typed import Options, Section
from fedjax_ht.lab.readers.registry import Normalisation, TaskName
from fedjax_ht.models.layers import NormKind
from fedjax_ht.trust.options import Attack, Delta, Unit

Tracker = Literal["tensorboard", "wandb", "mlflow"]


class Entry(NamedTuple):
    """A method of a run with its settings; see the module `entries`.

    Attributes:
      label: the entry's name, unique in a run.
      method: name of the method.
      options: all options of the method's factory; None for an optional number that is not set.
      training, model: plain values of the section's fields that the entry changes.
      tuned: how the settings were searched: data, number of tries, space; "" if they were not.
      searched_on: data, split and models of the search, see `bound_to`; () if not recorded.
    """

    label: str
    method: str
    options: dict[str, Any]
    training: dict[str, Any]
    model: dict[str, Any]
    tuned: str = ""
    searched_on: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the entry's folder in the run's folder."""
        return folder_of(self.label)

    @property
    def settings(self) -> tuple:
        """The method and all settings, without the label."""
        return self.method, self.options, self.training, self.model


def folder_of(label: str) -> str:
    """Returns the folder name of a label, which may hold a path."""
    return label.replace("/", "_")


@dataclasses.dataclass
class MethodConfig(Section, prefix="method."):
    """The method.

    Attributes:
      name: Name from `fedjax-ht list methods`; BASE+METHOD for a distilling method on a base or a
        server optimizer around it; or module:function of your own, which returns an fl.Method; "":
        only entries run.
      options: Options of the method; `fedjax-ht list methods NAME` shows them.
    """

    name: OptionalText = "fedtgp"
    options: Options = dataclasses.field(default_factory=Options)


@dataclasses.dataclass
class DatasetConfig(Section, prefix="dataset."):
    """The data set, before it is split.

    Attributes:
      name: Name from `fedjax-ht list datasets`, a path after a prefix such as csv: or folder:, or
        module:function of your own, which returns an fl.Dataset.
      data_dir: Folder of downloaded data sets.
      image_size: Height and width to which images are scaled; 0: as published.
      text_length: Number of tokens to which texts are truncated; 0: 200, or as published.
      tokenizer: Tokenizer of texts: a tokenizer.json, or a Hugging Face folder with one or with
        vocab.txt; "": words of the training texts.
      task: Meaning of the labels: classes, numbers to predict, 0 and 1 for each of several labels,
        or a class for each pixel (docs/tasks.md).
      label: Column of the label, in a table or texts; "": found by common names. Tasks other than
        classification may have several, "a,b".
      features: Columns of the features, in a table or texts; with "-" before each, the columns to
        exclude; (): all remaining ones.
      group: Column of a sample's person or place; "": found by common names.
      standardise: Standardisation by mean and deviation of the training samples: "auto" for tables,
        "on" also for other floats.
      classes: Names of the classes to keep; (): all.
      subset: Number of random samples to keep, the same for every seed; 0: all.
      normalisation: Scale of pixels. "half" maps them to [-1, 1]; for others see
        lab/readers/registry.py.
      backbone: Pre-trained extractor whose features, computed once, replace the images:
        efficientnet_lite0 to 2, NAME:FILE or hf:FOLDER (docs/models.md); "": none.
      shift: Domains of the images, such as rotate/4 or corrupt/3, by partition.seed; "": one domain
        (data/shift.py).
      public: Public set that server and clients have besides their own samples: hold_out:0.1, a
        share of this data set, or the name of another data set; "": none (docs/public_data.md).
      seen_before: Permission for a method's pre-trained part to have been trained on this data
        set.
    """

    name: str = "fashion_mnist_10k"
    data_dir: str = "data"
    image_size: OptionalCount = None
    text_length: OptionalCount = None
    tokenizer: OptionalText = None
    task: TaskName = "classification"
    label: OptionalText = None
    features: tuple[str, ...] = ()
    group: OptionalText = None
    standardise: Standardise = "auto"
    classes: tuple[str, ...] = ()
    subset: OptionalCount = None
    normalisation: Normalisation = "half"
    backbone: OptionalText = None
    shift: OptionalText = None
    public: OptionalText = None
    seen_before: bool = False


@dataclasses.dataclass
class PartitionConfig(Section, prefix="partition."):
    """The split of the data set among clients.

    Attributes:
      kind: Name from `fedjax-ht list partitions`.
      num_clients: Number of clients.
      seed: Seed of the split; other seeds of a run do not affect it.
      per_trial: A separate split for each trial, by seed + trial.
      options: Options of the split; `fedjax-ht list partitions KIND` shows them.
    """

    kind: str = "practical"
    num_clients: Count = 20
    seed: Seed = 1
    per_trial: bool = False
    options: Options = dataclasses.field(default_factory=Options)


@dataclasses.dataclass
class ModelConfig(Section, prefix="model."):
    """The clients' architectures.

    Attributes:
      group: Name from `fedjax-ht list groups`; hf:FOLDER, a Hugging Face folder (docs/models.md);
        or module:function of your own (docs/from_python.md).
      feature_dim: Width of the features, from extractor to head; 0: the group's own.
      shared: Architecture of the group that FML, FedKD, FedAPEN and FedMRL share, and whose
        extractor pFedAFM and pFedMoE share; "": the smallest.
      norm: Normalisation layer of models with batch normalisation.
      rates: Width rates of the slices of one network that clients train: rho=10 (DFRD's budgets),
        or 1,1/2,1/4 in turn; "": whole models.
      scaler: Division of a slice by its width rate before every norm, in training.
      output_relu: ReLU after the logits of htc4 heads, as in the released code.
      weights: File of the models' initial weights, or architecture -> file (docs/models.md); "":
        random weights, or those in the folder of a group hf:FOLDER.
      weights_head: Use of the file's classifiers as well, where they fit.
      lora: Ranks of low-rank adapters, which clients train instead of their extractors:
        rank=2,4,8, in turn (docs/adapters.md); "": none.
      lora_alpha: Numerator of the adapters' scale alpha / rank; 0: twice the rank.
      lora_targets: Paths of the dense layers to adapt, such as *query,*value.
    """

    group: str = "cnn5"
    feature_dim: OptionalCount = None
    shared: OptionalText = None
    norm: NormKind = "batch"
    rates: OptionalText = None
    scaler: bool = True
    output_relu: bool = False
    weights: Annotated[str | Mapping[str, str] | None, NotGiven("")] = None
    weights_head: bool = False
    lora: OptionalText = None
    lora_alpha: NonNegative = 16.0
    lora_targets: str = "*"


@dataclasses.dataclass
class TrainingConfig(Section, prefix="training."):
    """Local training; lab/runs/method.py converts it to `core.local_training.LocalTraining`.

    They are separate classes because LocalTraining holds functions (optimiser, schedule,
    augmentation), which a config file cannot.

    Attributes:
      optimizer: Optimiser of the clients, initialised in every round: sgd, adam, or one of optax
        with its own arguments, optax:adamw/b1=0.8/weight_decay=0.01.
      learning_rate: Step size of the optimiser.
      schedule: Factor on the step size by round: constant, cosine/500 (falls to 0 in 500 rounds),
        step/100/0.1 (a tenth every 100 rounds).
      momentum: Momentum of sgd.
      beta1: Decay rate of adam's mean gradient per step; that of its mean square is 0.999.
      weight_decay: Factor of weight decay.
      clip_norm: Norm at which a batch's gradient is clipped; 0: no clipping.
      batch_size: Samples per step.
      epochs: Passes over a client's training samples per round.
      steps: Steps per round, instead of epochs; 0: epochs.
      shuffle: A new order of the samples in every epoch; False: the stored order.
      drop_remainder: Omission of an epoch's last partial batch, if the client fills any batch.
      augmentation: Changes to every training batch, in order: flip, padded_crop, mean_padded_crop,
        resized_crop, random_erasing.
      of: Other values for clients of an architecture, such as
        resnet8:learning_rate=0.01:batch_size=32, one entry each.
    """

    optimizer: str = "sgd"
    learning_rate: Positive = 0.01
    schedule: str = "constant"
    momentum: Rest = 0.0
    beta1: Rest = 0.9
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = 0.0
    batch_size: Count = 10
    epochs: Count = 1
    steps: OptionalCount = None
    shuffle: bool = True
    drop_remainder: bool = True
    augmentation: tuple[str, ...] = ()
    of: tuple[str, ...] = ()


@dataclasses.dataclass
class DevicesConfig(Section, prefix="devices_profile."):
    """The clients' simulated devices, see docs/devices.md.

    A quantity is a number, or lognormal/MEDIAN/SIGMA, drawn once for each client; "": not
    simulated. `simulation.profile.Profile` is a separate class: it holds the arrays over clients,
    which lab/runs/devices.py draws or reads from these strings and files.

    Attributes:
      flops: Training speed in FLOP/s: 1e9, or lognormal/1e9/0.5; "": not simulated.
      up: Upload speed in bytes/s, written like flops.
      down: Download speed in bytes/s, written like flops.
      memory: Bytes of a client's memory, written like flops: each client trains the largest
        architecture of model.group that fits.
      csv: File with columns client and any of flops, up, down, memory, instead of those fields.
      available: Probability that a client is available in a round, 0.8; or csv:PATH with columns
        client, first_round, last_round; "": always.
      deadline: Simulated seconds of a round after which uploads are late; 0: none are.
      late: Treatment of late uploads: "lost", or "arrives" in the later round in which the client
        finishes.
      seed: Seed of the drawn quantities; all trials have the same devices.
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


@dataclasses.dataclass
class PrivacyConfig(Section, prefix="privacy."):
    """Differential privacy, see `trust.options.Privacy` and docs/privacy.md.

    They are separate classes because Privacy also holds `secret`, which no config.json may contain.

    Attributes:
      unit: Unit that noise hides: a client, from those who see the server's state; a client's
        upload, also from the server; or a single sample. none: no noise.
      clip: L2 norm at which a client's update, or a sample's gradient, is clipped.
      noise: Standard deviation of the noise on the sum, in units of clip.
      delta: Probability delta at which epsilon is reported.
    """

    unit: Annotated[Unit | None, NotGiven("none")] = None
    clip: Positive = 1.0
    noise: NonNegative = 1.0
    delta: Delta = 1e-5


@dataclasses.dataclass
class EvaluateConfig(Section, prefix="evaluate."):
    """Rounds and clients of evaluations, which are arguments of `simulation.history.run`.

    `core.evaluation.Scoring` is a separate section with what they score.

    Attributes:
      every: Rounds between evaluations.
      patience: Evaluations without a new best accuracy before a run ends; 0: it never ends early.
      sample: Number of clients that every evaluation scores, the same in a whole run; 0: all.
      participants: Rounds between scores of the participants right after their training.
    """

    every: Count = 1
    patience: OptionalCount = None
    sample: OptionalCount = None
    participants: Count = 1


@dataclasses.dataclass
class CheckpointConfig(Section, prefix="checkpoint."):
    """Checkpoints of a run.

    Attributes:
      every: Rounds between checkpoints.
      keep: Number of newest checkpoints to keep.
    """

    every: Count = 10
    keep: Count = 2


@dataclasses.dataclass
class ReportConfig(Section, prefix="report."):
    """The report of a run.

    Attributes:
      maps: Pictures of the features, with t-SNE if scikit-learn is installed ("auto"), or none.
    """

    maps: Literal["auto", "none"] = "auto"


@documented_by(Scoring)
class ScoringConfig(Section, Scoring, prefix="scoring."):
    """The scores of an evaluation: `core.evaluation.Scoring`, with settable fields."""


@documented_by(Attack)
class AttackConfig(Section, Attack, prefix="attack."):
    """The attack: `trust.options.Attack`, with settable fields."""


@dataclasses.dataclass
class Config(Section):
    """An experiment. By default, it trains FedTGP on the embedded images.

    Attributes:
      seed: Seed of initial weights, shuffles and participation; the split has its own seed.
      trials: Number of runs, one for each of the seeds seed, seed + 1, ...
      rounds: Communication rounds.
      entries: Entries to run beside the method on the same split, such as "fedproto:weight=3.0";
        and presets, which do not run themselves but give entries of their name their settings
        (lab/config/entries.py).
      participation: Share of the clients that take part in a round.
      select: Selection of a round's participants: uniform, by_samples, oort, or power_of_choice/2
        for those with the largest loss among twice as many candidates.
      new_share: Share of the clients that never train and are scored separately
        (docs/comparisons.md).
      drop_rate: Share of a round's participants whose upload is lost after training.
      shared_init: Equal initial weights for all clients of an architecture.
      uplink: Transforms of uploads, such as gaussian_noise/0.05/0.2: scale s and coefficient p; or
        compression, quantise/8 or top_k/0.01, see docs/codes.md.
      downlink: Transforms of downloads, such as gaussian_noise/0.05/0.2.
      refuse_outliers: Bound of an upload, in multiples of the round's median upload; larger ones
        are refused. 0: no bound.
      robust: Defences before the server, in order, such as norm_bound/2 and median; see
        trust/defences.py.
      give_up: Consecutive rounds without any upload after which a run stops; 0: it never does.
      lanes: Clients that train in parallel on a device; 0: chosen, see lanes.json in the run's
        folder.
      devices: Devices to shard the clients over; 0: all of the machine. On CPU each core is a
        device, at most 8; with two cores one device is used: set 2 for long runs.
      precision: Precision of matrix products and convolutions.
      client_store: Memory that holds the states of clients at rest.
      time_stages: Measurement of the seconds of a round's stages, which then wait for each other.
      track: Trackers that receive each round's row: tensorboard, wandb, mlflow (docs/running.md).
    """

    seed: Seed = 0
    trials: Count = 1
    rounds: Count = 100
    method: MethodConfig = dataclasses.field(default_factory=MethodConfig)
    entries: tuple[str | Entry | Mapping[str, Any], ...] = ()
    dataset: DatasetConfig = dataclasses.field(default_factory=DatasetConfig)
    partition: PartitionConfig = dataclasses.field(default_factory=PartitionConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    participation: Part = 1.0
    select: str = "uniform"
    new_share: Rest = 0.0
    drop_rate: Rest = 0.0
    shared_init: bool = False
    uplink: Specs = ()
    downlink: Specs = ()
    refuse_outliers: NonNegative = 1000.0
    robust: Specs = ()
    # with an attack, accuracies are those of the other clients
    attack: AttackConfig = dataclasses.field(default_factory=AttackConfig)
    devices_profile: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    privacy: PrivacyConfig = dataclasses.field(default_factory=PrivacyConfig)
    give_up: OptionalCount = 10
    evaluate: EvaluateConfig = dataclasses.field(default_factory=EvaluateConfig)
    scoring: ScoringConfig = dataclasses.field(default_factory=ScoringConfig)
    lanes: OptionalCount = None
    devices: OptionalCount = None
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    client_store: Literal["device", "host"] = "device"
    time_stages: bool = False
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    report: ReportConfig = dataclasses.field(default_factory=ReportConfig)
    track: tuple[Tracker, ...] = ()
