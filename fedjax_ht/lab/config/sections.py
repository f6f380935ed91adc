"""The sections and fields of a config, with their defaults, bounds and meanings.

A field that is not given is None here, and 0, "" or "none" in config files, on the command line
and in config.json, as the fields' meanings say. `fedjax-ht list fields` shows all of them.
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
    """A method of a run with its settings, see `entries`.

    Attributes:
      label: the entry's name, unique in a run.
      method: name of the method.
      options: all options of the method's factory; None where a number may be set and is not.
      training, model: plain values of the section's fields that the entry changes.
      tuned: how the settings were searched: data, number of tries, space; "" where they were not.
      searched_on: data, split and models of the search, see `bound_to`; () where not recorded.
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
        """The name of its folder in the run's."""
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
      name: Name of `fedjax-ht list methods`, BASE+METHOD for a distilling method on a base or a
        server optimizer around it, or module:function of your own, which makes an fl.Method; "":
        entries alone run.
      options: Options of the method; `fedjax-ht list methods NAME` shows them.
    """

    name: OptionalText = "fedtgp"
    options: Options = dataclasses.field(default_factory=Options)


@dataclasses.dataclass
class DatasetConfig(Section, prefix="dataset."):
    """The data set, before it is split.

    Attributes:
      name: Name of `fedjax-ht list datasets`, a path behind a prefix such as csv: or folder:, or
        module:function of your own, which returns an fl.Dataset.
      data_dir: Folder of data sets that were downloaded.
      image_size: Height and width to which images are scaled; 0: as published.
      text_length: Tokens of a text, beyond which it is cut; 0: 200, or as published.
      tokenizer: Tokenizer of texts, a tokenizer.json or a folder of Hugging Face's with one or with
        vocab.txt; "": words of the training texts.
      task: Meaning of the labels: classes, numbers to predict, 0 and 1 for each of several labels,
        or a class for each pixel (docs/tasks.md).
      label: Column of the label, of a table or of texts; "": found by usual names. Of other tasks
        than classification it may name several, "a,b".
      features: Columns of the features, of a table or of texts, or with "-" before each all
        columns but these; (): all that are left.
      group: Column of the person or place that a sample belongs to; "": found by usual names.
      standardise: Division by mean and deviation of the training samples. "auto" takes tables,
        "on" other floats, too.
      classes: Names of the classes to keep; (): all.
      subset: Number of random samples to keep, the same ones for every seed; 0: all.
      normalisation: Scale of pixels. "half" maps them to [-1, 1]; for others see
        lab/readers/registry.py.
      backbone: Pre-trained extractor whose features, computed once, take the place of the images:
        efficientnet_lite0 to 2, NAME:FILE or hf:FOLDER (docs/models.md); "": none.
      shift: Domains of the images, such as rotate/4 or corrupt/3, by partition.seed; "": one domain
        (data/shift.py).
      public: Public set, which server and clients have beside their own samples: hold_out:0.1, a
        share held out of this set, or the name of another data set; "": none
        (docs/public_data.md).
      seen_before: Permission for a pre-trained part of a method to have been trained on this data
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
      kind: Name of `fedjax-ht list partitions`.
      num_clients: Number of clients.
      seed: Seed of the split; other seeds of a run do not change it.
      per_trial: A split of its own for each trial, by seed + trial.
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
      group: Name of `fedjax-ht list groups`, or hf:FOLDER, a folder of Hugging Face's
        (docs/models.md), or module:function of your own (docs/from_python.md).
      feature_dim: Width of the features, from extractor to head; 0: the group's own.
      shared: Architecture of the group that FML, FedKD, FedAPEN and FedMRL share, and pFedAFM and
        pFedMoE the extractor of; "": the smallest.
      norm: Normalisation of models that normalise by batch.
      rates: Width rates of slices of one network, which clients then train: rho=10 (DFRD's
        budgets), or 1,1/2,1/4 in turn; "": whole models.
      scaler: Division of a slice by its width rate before every norm, in training.
      output_relu: ReLU behind the logits of htc4 heads, as in the released code.
      weights: File that models start from, or architecture -> file (docs/models.md); "": random
        weights, or those in the folder of a group hf:FOLDER.
      weights_head: Use of the file's classifiers, too, where they fit.
      lora: Ranks of low-rank adapters, which clients then train instead of their extractors:
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
    """Local training; lab/runs/method.py makes `core.local_training.LocalTraining` of it.

    They are two classes because LocalTraining holds optimiser, schedule and augmentation as
    functions, and a config file cannot.

    Attributes:
      optimizer: Optimiser of the clients, whose state is made anew in every round: sgd, adam, or an
        optimiser of optax with numbers of its own, optax:adamw/b1=0.8/weight_decay=0.01.
      learning_rate: Step size of the optimiser.
      schedule: Factor on the step size by round: constant, cosine/500 (falls to 0 in 500 rounds),
        step/100/0.1 (a tenth every 100 rounds).
      momentum: Momentum of sgd.
      beta1: Share of its mean gradient that adam keeps in a step; its mean square keeps 0.999.
      weight_decay: Factor of the decay of weights.
      clip_norm: Length at which a batch's gradient is clipped; 0: no clipping.
      batch_size: Samples of a step.
      epochs: Passes over a client's training samples in a round.
      steps: Steps of a round, instead of epochs; 0: epochs.
      shuffle: A new order of the samples in every epoch; without, in stored order.
      drop_remainder: Omission of an epoch's last partial batch, where a client fills one at all.
      augmentation: Changes of every training batch, in order: flip, padded_crop, mean_padded_crop,
        resized_crop, random_erasing.
      of: Other values for clients of an architecture, resnet8:learning_rate=0.01:batch_size=32, an
        entry each.
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


@dataclasses.dataclass
class PrivacyConfig(Section, prefix="privacy."):
    """Differential privacy, `trust.options.Privacy` and docs/privacy.md.

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


@dataclasses.dataclass
class EvaluateConfig(Section, prefix="evaluate."):
    """The rounds and clients of evaluations, which are arguments of `simulation.history.run`; what
    they score is another section, `core.evaluation.Scoring`.

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


@dataclasses.dataclass
class CheckpointConfig(Section, prefix="checkpoint."):
    """Checkpoints of a run.

    Attributes:
      every: Rounds between checkpoints.
      keep: Number of checkpoints that are kept.
    """

    every: Count = 10
    keep: Count = 2


@dataclasses.dataclass
class ReportConfig(Section, prefix="report."):
    """The report of a run.

    Attributes:
      maps: Pictures of the features, also by t-SNE where scikit-learn is installed ("auto"), or
        none.
    """

    maps: Literal["auto", "none"] = "auto"


@documented_by(Scoring)
class ScoringConfig(Section, Scoring, prefix="scoring."):
    """What an evaluation scores: `core.evaluation.Scoring`, whose fields can be set."""


@documented_by(Attack)
class AttackConfig(Section, Attack, prefix="attack."):
    """The attack: `trust.options.Attack`, whose fields can be set."""


@dataclasses.dataclass
class Config(Section):
    """An experiment. By default FedTGP runs on the embedded images.

    Attributes:
      seed: Seed of initial weights, shuffles and participation; the split has a seed of its own.
      trials: Number of seeds seed, seed + 1, ..., a run each.
      rounds: Communication rounds.
      entries: Entries that run beside the method on the same split, such as "fedproto:weight=3.0";
        and presets, which give entries of their name their settings and do not run by themselves
        (lab/config/entries.py).
      participation: Share of the clients that take part in a round.
      select: Choice of a round's participants: uniform, by_samples, oort, or power_of_choice/2 for
        those with the largest loss among twice as many candidates.
      new_share: Share of the clients that never train, and are scored apart
        (docs/comparisons.md).
      drop_rate: Share of a round's participants whose upload is lost after training.
      shared_init: The same first weights for all clients of an architecture.
      uplink: Transforms of uploads, such as gaussian_noise/0.05/0.2: scale s and coefficient p; or
        a code that sends fewer bytes, quantise/8 or top_k/0.01, see docs/codes.md.
      downlink: Transforms of downloads, such as gaussian_noise/0.05/0.2.
      refuse_outliers: Bound of an upload, in multiples of the round's median upload; one beyond is
        refused. 0: no bound.
      robust: Defences before the server, in order, such as norm_bound/2 and median; see
        trust/defences.py.
      give_up: Rounds in a row from which nothing arrives, after which a run stops; 0: it never
        does.
      lanes: Clients side by side on a device; 0: chosen, see lanes.json in the run's folder.
      devices: Devices to shard the clients over; 0: all that the machine has. On CPU a core is a
        device, at most 8, and on two cores one device is taken: give 2 for long runs.
      precision: Precision of matrix products and convolutions.
      client_store: Memory in which the states of clients at rest live.
      time_stages: Measurement of the seconds of a round's stages, which then wait for each other.
      track: Trackers that get each round's row: tensorboard, wandb, mlflow (docs/running.md).
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
    # accuracies are then those of the clients that do not attack
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
