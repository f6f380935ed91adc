"""The fields that every experiment has, with their defaults, and the string arguments that every
config takes.

    --config=quickstart:runlocal                a short check of the same experiment
    --config=quickstart:method=fedproto         the same experiment with another method
    --config=quickstart:partition=pathological  another split, with its default options
    --config=quickstart:method=local,runlocal   several of them

A method or a split that is named so starts from its own defaults, not from those of the config; any
of its options can be overridden: --config.method.options.tau=50,
--config.partition.options.classes_per_client=3.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ml_collections import ConfigDict, config_dict

from fedjax_ht.core.bounds import (
    Count,
    NonNegative,
    Part,
    Positive,
    Rest,
    Seed,
    Whole,
    hints_of,
    kind_of,
)
from fedjax_ht.core.names import unknown, unknown_option
from fedjax_ht.core.wire import Late
from fedjax_ht.data.moments import Normalisation
from fedjax_ht.data.partition import partition_options
from fedjax_ht.methods import method_factory
from fedjax_ht.models.norm import NormKind
from fedjax_ht.trust.attacks import Kind
from fedjax_ht.trust.privacy import Delta, Unit


class MethodFields(NamedTuple):
    name: str = "fedtgp"  # its options are those of its factory


class DatasetFields(NamedTuple):
    name: str = "fashion_mnist_10k"
    data_dir: str = "data"
    image_size: Whole = 0  # 0: as published
    text_length: Whole = 0  # tokens of a text; 0: 200, or as published
    classes: tuple[str, ...] = ()  # names of the classes to keep; none: all
    subset: Whole = 0  # this many random images, the same for every seed; 0: all
    normalisation: Normalisation = "half"  # pixels to [-1, 1]; others: data/moments.py
    # rotate/4 or corrupt/3: so many domains of the images, by partition.seed (data/shift.py)
    shift: str = ""
    # True lets a method's pre-trained part have been trained on this dataset
    seen_before: bool = False


class PartitionFields(NamedTuple):
    kind: str = "practical"  # its options are those of its function
    num_clients: Count = 20
    seed: Seed = 1
    per_trial: bool = False  # True: each trial has a split of its own, by seed + trial


class ModelFields(NamedTuple):
    group: str = "cnn5"  # or module:function of your own (docs/own_model_and_data.md)
    feature_dim: Whole = 0  # 0: the group's own
    # architecture of the group that FML, FedKD and FedAPEN share; "" is the smallest
    shared: str = ""
    norm: NormKind = "batch"  # of models that normalise by batch
    # clients train slices of one network: rho=10 (DFRD's budgets), or 1,1/2,1/4 in turn
    rates: str = ""
    scaler: bool = True  # of slices: divide by the width rate before every norm, in training
    output_relu: bool = False  # True: htc4 heads with the released code's ReLU behind the logits
    # a file that models start from, or architecture -> file (docs/models.md)
    weights: str | Mapping[str, str] = ""
    weights_head: bool = False  # True: classifiers, too, where they fit


class TrainingFields(NamedTuple):
    optimizer: Literal["sgd", "adam"] = "sgd"  # made new every round
    learning_rate: Positive = 0.01
    # by round: cosine/500 falls to 0 in 500 rounds, step/100/0.1 by 10 every 100
    schedule: str = "constant"
    momentum: Rest = 0.0  # of sgd
    beta1: Rest = 0.9  # of adam: how much of its mean gradient stays; the mean square keeps 0.999
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = 0.0  # 0: no clipping
    batch_size: Count = 10
    epochs: Count = 1
    steps: Whole = 0  # above 0: this many steps instead of epochs
    shuffle: bool = True
    drop_remainder: bool = True
    # flip, padded_crop, mean_padded_crop, resized_crop, random_erasing
    augmentation: tuple[str, ...] = ()


class AttackFields(NamedTuple):
    kind: Literal["none"] | Kind = "none"  # see fedjax_ht/trust/attacks.py
    share: Rest = 0.0  # of the clients; accuracies are then those of the others
    strength: NonNegative = 1.0
    seed: Seed = 0  # of who attacks


class DevicesProfileFields(NamedTuple):
    """Simulated devices of the clients, see docs/devices.md. A quantity is empty (not simulated), a
    number, or lognormal/MEDIAN/SIGMA, drawn once for each client."""

    flops: str = ""  # FLOP/s of training: 1e9, or lognormal/1e9/0.5
    up: str = ""  # bytes/s of an upload
    down: str = ""  # bytes/s of a download
    # bytes: each client trains the largest architecture of model.group that fits
    memory: str = ""
    # a file with columns client and any of flops, up, down, memory, instead of those fields
    csv: str = ""
    # in each round: 0.8, by chance; or csv:PATH with columns client, first_round, last_round
    available: str = ""
    # simulated seconds of a round after which uploads are late; 0: none
    deadline: NonNegative = 0.0
    late: Late = "lost"  # or "arrives": in the later round in which the client is done with it
    seed: Seed = 0  # of what is drawn; all trials have the same devices


class PrivacyFields(NamedTuple):
    # what noise hides, see fedjax_ht/trust/privacy.py and docs/privacy.md
    unit: Literal["none"] | Unit = "none"
    clip: Positive = 1.0  # L2 norm of a client's update, or of a sample's gradient
    noise: NonNegative = 1.0  # standard deviation on the sum, in clip
    delta: Delta = 1e-5  # at which epsilon is told


class EvaluateFields(NamedTuple):
    every: Count = 1
    mode: Literal["received", "trained"] = "received"
    # 0: as the device likes, or 64 where norms of a model go by the batch they see
    batch_size: Whole = 0
    patience: Whole = 0  # 0: never
    # of static_batch norms of a model on the server
    global_statistics: Literal["batch", "training"] = "batch"
    train: bool = False  # also on training samples: train_accuracy
    sample: Whole = 0  # clients that every evaluation looks at, the same ones in a run; 0: all
    # rounds between those whose participants are scored as training left them
    participants: Count = 1


class CheckpointFields(NamedTuple):
    every: Count = 10
    keep: Count = 2


class ReportFields(NamedTuple):
    maps: Literal["auto", "none"] = "auto"  # pictures of features, also by t-SNE if installed


class Fields(NamedTuple):
    """Every field, its default and what it may be (core/bounds.py). By default FedTGP runs on the
    embedded images."""

    seed: Seed = 0  # initial weights, shuffles, participation; the split has its own
    trials: Count = 1  # seeds seed, seed + 1, ... in one program
    rounds: Count = 100
    method: MethodFields = MethodFields()
    # what else runs on the same split, see fedjax_ht/experiment/entries.py: "fedproto:weight=3.0"
    compare: tuple[str, ...] = ()
    entries: tuple[str | Mapping[str, Any], ...] = ()  # what runs instead of all these
    given: tuple[str, ...] = ()  # what a setting fixes of a method: "fedktl:generator=natural_32"
    # entries that somebody has chosen: what "fedtgp@tuned" stands for
    tuned: tuple[str, ...] = ()
    tuned_on: str = ""  # on what they were chosen
    # what was searched of each: "fedproto: weight from 0.01 to 10"
    searched: tuple[str, ...] = ()
    dataset: DatasetFields = DatasetFields()
    partition: PartitionFields = PartitionFields()
    model: ModelFields = ModelFields()
    training: TrainingFields = TrainingFields()
    participation: Part = 1.0
    drop_rate: Rest = 0.0
    shared_init: bool = False
    # transforms, such as (("gaussian_noise", 0.05, 0.2),): scale s and coefficient p
    uplink: tuple[Any, ...] = ()
    downlink: tuple[Any, ...] = ()
    refuse_outliers: NonNegative = 1000.0  # times the round's median upload at most; 0: no bound
    # before the server, in order: (("norm_bound", 2.0), ("median",)), see trust/defences.py
    robust: tuple[Any, ...] = ()
    attack: AttackFields = AttackFields()  # what some clients do, to see what that does
    # time and memory of the clients, simulated
    devices_profile: DevicesProfileFields = DevicesProfileFields()
    privacy: PrivacyFields = PrivacyFields()
    # rounds in a row from which nothing arrives, after which a run stops; 0: never
    give_up: Whole = 10
    evaluate: EvaluateFields = EvaluateFields()
    # clients side by side on a device; 0 chooses, see lanes.json in the run's folder
    lanes: Whole = 0
    # to shard the clients over; 0: all there are, on CPU one a core, at most 8
    devices: Whole = 0
    # of matrix products and convolutions
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    client_store: Literal["device", "host"] = "device"
    # also measure the seconds of a round's stages, which then wait for each other
    profile: bool = False
    checkpoint: CheckpointFields = CheckpointFields()
    report: ReportFields = ReportFields()


def base_config() -> ConfigDict:
    """A complete config, all of `Fields`. A config file changes what its experiment changes."""
    config = as_config(Fields())
    config.method = method_config(config.method.name)
    config.partition = partition_config(config.partition.kind)
    return config


def as_config(fields: tuple) -> ConfigDict:
    """A NamedTuple of fields and sections as a ConfigDict."""
    hints = hints_of(type(fields))

    def field(name: str, value: Any) -> Any:
        # text or a mapping: a ConfigDict takes one type only
        if Mapping in map(get_origin, get_args(hints[name])):
            return config_dict.FieldReference(value, field_type=object)
        return as_config(value) if hasattr(value, "_fields") else value

    return ConfigDict({name: field(name, value) for name, value in fields._asdict().items()})


def method_config(name: str, **options) -> ConfigDict:
    """A method with all the options its factory has, so that any can be overridden."""
    # the first is local training
    parameters = list(inspect.signature(method_factory(name)).parameters.values())[1:]
    config = as_config(MethodFields(name))
    config.options = all_options(name, parameters, options)
    return config


def partition_config(kind: str, num_clients: int = 20, **options) -> ConfigDict:
    """A split among clients with all the options its kind has, so that any can be overridden."""
    config = as_config(PartitionFields(kind, num_clients))
    config.options = all_options(f"partition {kind!r}", partition_options(kind).values(), options)
    return config


def all_options(owner: str, parameters: Iterable[inspect.Parameter], given: dict) -> ConfigDict:
    """Each parameter's given value or default; None as a placeholder that may be set."""
    options = ConfigDict()
    for parameter in parameters:
        value = given.pop(parameter.name, parameter.default)
        options[parameter.name] = (
            config_dict.placeholder(kind_of(parameter.annotation)) if value is None else value
        )
    if given:
        raise ValueError(unknown_option(owner, next(iter(given)), list(options)))
    return options


def apply_argument(
    config: ConfigDict,
    argument: str | None,
    own: Mapping[str, Callable[[ConfigDict, str], None]] | None = None,
    **run_locally,
) -> ConfigDict:
    """Applies a config's string argument.

    Args:
      config: what the config file describes.
      argument: what stands behind the colon, parts with commas between them.
      own: further arguments of this config, name -> (config, value) -> None; `clients=50` is
        `own["clients"]`.
      **run_locally: the fields that make it a first check, of a few rounds.
    """
    own = own or {}
    for part in filter(None, (argument or "").split(",")):
        name, _, value = part.partition("=")
        if part == "runlocal":
            config.update_from_flattened_dict(run_locally or {"rounds": 2})
        elif part.startswith("method="):
            config.method = method_config(part.removeprefix("method="))
        elif part.startswith("partition="):
            config.partition = partition_config(
                part.removeprefix("partition="), config.partition.num_clients
            )
        elif name in own:
            own[name](config, value)
        else:
            there = [
                "runlocal",
                "method=NAME",
                "partition=KIND",
                *(f"{name}=VALUE" for name in own),
            ]
            raise ValueError(unknown("config argument", part, there))
    return config
