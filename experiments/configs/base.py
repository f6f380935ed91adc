"""The fields that every experiment has, with their defaults, and the string arguments that every config takes.

--config=experiments/configs/quickstart.py:runlocal              a one-minute check of the same experiment
--config=experiments/configs/quickstart.py:method=fedproto       the same experiment with another method
--config=experiments/configs/quickstart.py:partition=pathological  another split, with its default options
--config=experiments/configs/quickstart.py:method=local,runlocal   several of them

A method or a split that is named so starts from its own defaults, not from those of the config; any of its options can
be overridden: --config.method.options.tau=50, --config.partition.options.classes_per_client=3.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping

from ml_collections import ConfigDict, config_dict

from fedjax_ht.data.partition import partition_options
from fedjax_ht.methods import method_factory


def method_config(name: str, **options) -> ConfigDict:
    """A method with all the options its factory has, so that any can be overridden."""
    parameters = list(inspect.signature(method_factory(name)).parameters.values())[1:]  # the first is local training
    return ConfigDict({"name": name, "options": all_options(name, parameters, options)})


def partition_config(kind: str, num_clients: int = 20, **options) -> ConfigDict:
    """A split among clients with all the options its kind has, so that any can be overridden."""
    config = ConfigDict({"kind": kind, "num_clients": num_clients, "seed": 1})
    config.per_trial = False  # True: each trial has a split of its own, by seed + trial
    config.options = all_options(f"partition {kind!r}", partition_options(kind).values(), options)
    return config


def all_options(owner: str, parameters: Iterable[inspect.Parameter], given: dict) -> ConfigDict:
    """Each parameter's given value or default; None as a number that may be set."""
    options = ConfigDict()
    for parameter in parameters:
        value = given.pop(parameter.name, parameter.default)
        number = int if "int" in str(parameter.annotation) else float
        options[parameter.name] = config_dict.placeholder(number) if value is None else value
    if given:
        raise ValueError(f"{owner} has no option {next(iter(given))!r}; it has {', '.join(options) or 'none'}")
    return options


def base_config() -> ConfigDict:
    """A complete config: FedTGP on the embedded images. A config file changes what its experiment changes."""
    config = ConfigDict()
    config.seed = 0  # initial weights, shuffles, participation; the split has its own
    config.trials = 1  # seeds seed, seed + 1, ... in one program
    config.rounds = 100
    config.method = method_config("fedtgp")
    config.compare = ()  # what else runs on the same split, as experiments/entries.py writes it: "fedproto:weight=3.0"
    config.entries = ()  # what runs instead of all these
    config.given = ()  # what a setting fixes of a method, an entry each: "fedktl:generator=checkpoints/natural_32.npz"
    config.tuned = ()  # entries that somebody has chosen: what "fedtgp@tuned" stands for
    config.tuned_on = ""  # on what they were chosen

    config.dataset = ConfigDict({"name": "fashion_mnist_10k", "data_dir": "data", "image_size": 0})  # 0: as published
    config.dataset.classes = ()  # names of the classes to keep; none: all
    config.dataset.subset = 0  # this many random images, the same for every seed; 0: all
    config.dataset.normalisation = "half"  # pixels to [-1, 1]; or dataset: by the set's moments (data/moments.py)
    config.dataset.seen_before = False  # True lets a method's pre-trained part have been trained on this dataset

    config.partition = partition_config("practical")
    config.model = ConfigDict({"group": "cnn5", "feature_dim": 0})  # 0: the group's own
    config.model.shared = ""  # architecture of the group that FML, FedKD and FedAPEN share; "" is the smallest
    config.model.norm = "batch"  # group, layer, static_batch, none: of models that normalise by batch
    config.model.rates = ""  # clients train slices of one network: rho=10 (DFRD's budgets), or 1,1/2,1/4 in turn
    config.model.scaler = True  # of slices: divide by the width rate before every norm, in training
    config.model.output_relu = False  # True: htc4 heads with the released code's ReLU behind the logits

    config.training = ConfigDict()
    config.training.optimizer = "sgd"  # sgd or adam, made new every round
    config.training.learning_rate = 0.01
    config.training.schedule = "constant"  # by round: cosine/500 falls to 0 in 500 rounds, step/100/0.1 by 10 every 100
    config.training.momentum = 0.0  # of sgd
    config.training.beta1 = 0.9  # of adam: how much of its mean gradient stays; the mean square keeps 0.999
    config.training.weight_decay = 0.0
    config.training.clip_norm = 0.0  # 0: no clipping
    config.training.batch_size = 10
    config.training.epochs = 1
    config.training.steps = 0  # above 0: this many steps instead of epochs
    config.training.shuffle = True
    config.training.drop_remainder = True
    config.training.augmentation = ()  # flip, padded_crop, mean_padded_crop, resized_crop, random_erasing

    config.participation = 1.0
    config.drop_rate = 0.0
    config.shared_init = False
    config.uplink = ()  # transforms, such as (("gaussian_noise", 0.05, 0.2),): scale s and coefficient p
    config.downlink = ()
    config.robust = ()  # what the server does against bad clients, in order: (("norm_bound", 3.0), ("median",))
    config.attack = ConfigDict({"kind": "none"})  # or what some clients do: see fedjax_ht/core/attacks.py
    config.attack.share = 0.0  # of the clients; accuracies are then those of the others
    config.attack.strength = 1.0
    config.attack.seed = 0  # of who attacks
    config.give_up = 10  # rounds in a row from which nothing arrives, after which a run stops; 0: never

    config.evaluate = ConfigDict({"every": 1, "mode": "received", "batch_size": 0, "patience": 0})  # patience 0: never
    # batch_size 0: as the device likes, or 64 where norms of a model go by the batch they see
    config.evaluate.global_statistics = "batch"  # or training: of static_batch norms of a model on the server
    config.evaluate.train = False  # also on training samples: train_accuracy
    config.evaluate.sample = 0  # clients that every evaluation looks at, the same ones in a run; 0: all
    config.lanes = 0  # clients side by side on a device; 0 chooses, see lanes.json in the run's folder
    config.devices = 0  # to shard the clients over; 0: all there are, on CPU one a core, at most 8
    config.precision = "float32"  # of matrix products and convolutions: float32, tensorfloat32, bfloat16
    config.client_store = "device"  # or host
    config.checkpoint = ConfigDict({"every": 10, "keep": 2})
    return config


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
      own: further arguments of this config, name -> (config, value) -> None; `clients=50` is `own["clients"]`.
      **run_locally: the fields that make it a one-minute check.
    """
    own = own or {}
    for part in filter(None, (argument or "").split(",")):
        name, _, value = part.partition("=")
        if part == "runlocal":
            config.update_from_flattened_dict(run_locally or {"rounds": 2})
        elif part.startswith("method="):
            config.method = method_config(part.removeprefix("method="))
        elif part.startswith("partition="):
            config.partition = partition_config(part.removeprefix("partition="), config.partition.num_clients)
        elif name in own:
            own[name](config, value)
        else:
            there = ["runlocal", "method=NAME", "partition=KIND", *(f"{name}=VALUE" for name in own)]
            raise ValueError(f"unknown config argument {part!r}; there are {', '.join(there)}")
    return config
