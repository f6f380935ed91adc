"""From a config to the objects of the library, every mistake found before anything is compiled."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import optax
from ml_collections import ConfigDict

from fedjax_ht.configs.base import Fields, base_config
from fedjax_ht.core.bounds import MAX_SEED, Count, NonNegative, Part, check_value, hints_of
from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.core.inputs import InputShape, Pixels
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.names import meant, unknown, unknown_option
from fedjax_ht.core.user_code import is_own
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.data.augment import compose
from fedjax_ht.data.dataset import Dataset, Partition, of_classes, subset
from fedjax_ht.data.moments import normalised
from fedjax_ht.data.partition import check_partition, make_partition, partition_options
from fedjax_ht.data.shift import parse_shift, shifted
from fedjax_ht.data.sources import dataset_names, load_dataset
from fedjax_ht.experiment.devices import client_values, fitting, make_profile
from fedjax_ht.experiment.entries import Entry, as_run, entries_of
from fedjax_ht.experiment.weights import missing, with_weights
from fedjax_ht.methods import method_factory
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.models import model_group, sliced_network, width_budgets
from fedjax_ht.models.registry import GROUPS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.attacks import Attack, attackers
from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.epsilon import accounting
from fedjax_ht.trust.privacy import Privacy, private

SEE = "see fedjax_ht/configs/base.py for the fields"


class Experiment(NamedTuple):
    """A run: what its entries share, `partitions` one a trial; and by label the entries, methods
    and federations."""

    dataset: Dataset
    partitions: tuple[Partition, ...]
    options: SimulationOptions
    entries: dict[str, Entry]
    methods: dict[str, Method]
    federations: dict[str, Federation]


class Task(NamedTuple):
    """What models are made for: what a `Dataset` has by these names, for who has none."""

    input_shape: InputShape
    num_classes: int
    vocabulary: int | None = None


class Settled(NamedTuple):
    """What a config says before there are any data: by label the entries, their configs and their
    methods."""

    options: SimulationOptions
    entries: dict[str, Entry]
    configs: dict[str, ConfigDict]
    methods: dict[str, Method]


def settle(config: ConfigDict, trust: bool = True) -> Settled:
    """Checks all of a config that can be wrong without the data.

    Args:
      config: what to run.
      trust: False refuses a config by which a user's own code is imported, before it is; see
        `own_code`.

    Raises:
      ValueError, FileNotFoundError: one line that names the field, its value, and what would be
        right.
    """
    check_fields(config)
    check_values(config)
    check_together(config)
    options, entries = (
        simulation_options(config),
        {entry.label: entry for entry in entries_of(config)},
    )
    if options.privacy is not None:
        accounting()
    configs, partition = (
        {label: as_run(entry, config) for label, entry in entries.items()},
        config.partition,
    )
    for own in configs.values():
        check_values(own)
        width_rates(own.model.rates, partition.num_clients)
        if own.model.group not in GROUPS and not is_own(own.model.group):
            there = f"the groups are {', '.join(GROUPS)}, or module:function of your own"
            raise ValueError(unknown("model group", own.model.group, GROUPS, there))
    if not trust and (code := own_code(entries, configs)):
        raise ValueError(
            f"the config names {', '.join(code)}, which would be imported from {os.getcwd()} or "
            "where it is installed, and run; if you know whose code that is, allow it by --trust, "
            "from Python by trust=True"
        )
    methods = {
        label: make_method(entry, configs[label].training) for label, entry in entries.items()
    }
    return Settled(options, entries, configs, methods)


def own_code(entries: Mapping[str, Entry], configs: Mapping[str, ConfigDict]) -> list[str]:
    """Every "module:function" that entries may import, of all text in their methods' options and
    their models. Names of the library's own are none."""
    texts = [value for entry in entries.values() for value in entry.options.values()]
    texts += [value for own in configs.values() for value in own.model.values()]
    return sorted({text for text in texts if isinstance(text, str) and is_own(text)})


def build(config: ConfigDict, begun: bool = False, trust: bool = True) -> Experiment:
    """Checks a config, and makes what it describes.

    Args:
      config: what to run.
      begun: of a run that has begun, weights that models started from may be gone.
      trust: as of `settle`.

    Raises:
      ValueError, FileNotFoundError: one line that names the field, its value, and what would be
        right.
    """
    options, entries, configs, methods = settle(config, trust)
    partition = config.partition
    # What can be wrong without the data is found without it.
    if ":" not in config.dataset.name and config.dataset.name not in dataset_names():
        raise ValueError(unknown("dataset", config.dataset.name, dataset_names()))
    known = partition_options(partition.kind)
    refuse_unknown(
        f"partition {partition.kind!r}",
        partition.options,
        list(known),
        f"partition={partition.kind}",
    )
    check_partition(partition.kind, partition.num_clients, None, **partition.options)
    if config.dataset.shift:
        parse_shift(config.dataset.shift)
    size = config.dataset.image_size or None, config.dataset.text_length or None
    dataset = load_dataset(config.dataset.name, config.dataset.data_dir, *size)
    dataset = normalised(dataset, config.dataset.normalisation)
    for own in configs.values():
        if own.training.augmentation and not isinstance(dataset.preprocess, Pixels):
            raise ValueError(
                f"training.augmentation is {tuple(own.training.augmentation)}; {dataset.name} has "
                "no images"
            )
    if config.dataset.classes:
        dataset = of_classes(dataset, config.dataset.classes)
    if config.dataset.subset:
        dataset = subset(dataset, config.dataset.subset, partition.seed)
    if config.dataset.shift:
        dataset = shifted(dataset, config.dataset.shift, partition.seed)
    check_partition(partition.kind, partition.num_clients, dataset.num_classes, **partition.options)
    memory = client_values(config.devices_profile, partition.num_clients).get("memory")
    # What a model takes to train hangs on the recipe.
    parts = ("model", "training") if memory is not None else ("model",)
    texts = {
        label: "".join(own[part].to_json_best_effort() for part in parts)
        for label, own in configs.items()
    }
    made = {  # equal ones once: they may hold weights
        text: make_clients(configs[label], dataset, memory, begun)
        for text, label in {text: label for label, text in texts.items()}.items()
    }
    federations = {label: made[text] for label, text in texts.items()}
    for label, method in methods.items():
        private(method, options.privacy).check(federations[label])
        if options.profile is not None:
            options.profile.check(method, partition.num_clients)
        check_pretraining(method, config.dataset)
    splits = [
        make_partition(
            partition.kind,
            dataset,
            partition.num_clients,
            partition.seed + trial,
            **partition.options,
        )
        for trial in range(config.trials if partition.per_trial else 1)
    ]
    partitions = tuple(splits if partition.per_trial else splits * config.trials)
    return Experiment(dataset, partitions, options, entries, methods, federations)


def make_clients(
    config: ConfigDict,
    dataset: Dataset | Task,
    memory: np.ndarray | None = None,
    begun: bool = False,
) -> Federation:
    """The clients' architectures from a config, by their `memory` in bytes where it is given;
    `begun` as of `build`."""
    if rates := width_rates(config.model.rates, config.partition.num_clients):
        if memory is not None:
            raise ValueError(
                f"model.rates is {config.model.rates!r}; with devices_profile.memory it must be ''"
            )
        return sliced_federation(config.model, rates, dataset)
    return whole_federation(config, dataset, memory, begun)


def whole_federation(
    config: ConfigDict,
    dataset: Dataset | Task,
    memory: np.ndarray | None = None,
    begun: bool = False,
) -> Federation:
    """Client i has module i mod their number of the model group, or the largest that its memory has
    room for."""
    model, num_clients = config.model, config.partition.num_clients
    task = (dataset.num_classes, dataset.input_shape, model.feature_dim or None)
    modules = model_group(model.group, *task, model.norm, model.output_relu, dataset.vocabulary)
    if model.shared and model.shared not in modules:
        rule = f"it must be empty or one of model group {model.group!r}: {', '.join(modules)}"
        raise ValueError(f"model.shared is {model.shared!r}{meant(model.shared, modules, rule)}")
    shared = modules[model.shared] if model.shared else None
    made = functools.partial(
        make_federation, modules, dataset.input_shape, dataset.num_classes, shared=shared
    )
    if memory is None:
        federation = made(num_clients)
    else:
        training = local_training(config.training)
        needed = {
            bucket.name: training_memory(bucket, training) for bucket in made(len(modules)).buckets
        }
        federation = made(assignment=fitting(needed, memory))
    if not model.weights or (begun and missing(model.weights)):
        return federation
    weights = (
        model.weights
        if isinstance(model.weights, str)
        else {k: model.weights[k] for k in model.weights}
    )
    return with_weights(federation, weights, model.weights_head)


def sliced_federation(
    model: ConfigDict, rates: tuple[float, ...], dataset: Dataset | Task
) -> Federation:
    """Client i has a slice of the group's one network, of width rate rates[i]."""
    for field, value in (
        ("feature_dim", 0),
        ("shared", ""),
        ("output_relu", False),
        ("weights", ""),
        ("weights_head", False),
    ):
        if model[field] != value:
            raise ValueError(
                f"model.{field} is {model[field]!r}; with model.rates it must be {value!r}"
            )
    shape, num_classes = dataset.input_shape, dataset.num_classes
    network = sliced_network(model.group, num_classes, shape, model.norm, model.scaler)
    return make_sliced_federation(network, rates, shape, num_classes)


def width_rates(text: str, num_clients: int) -> tuple[float, ...]:
    """Each client's width rate from `model.rates`; () where it is empty, for whole models."""
    try:
        if text.startswith("rho="):
            rho = float(text.removeprefix("rho="))
            check_value("rho", rho, NonNegative)
            return width_budgets(num_clients, rho)
        rates = [float(Fraction(part.strip())) for part in text.split(",")] if text else []
        if all(0 < rate <= 1 for rate in rates) and len(rates) <= num_clients:
            return tuple(rates[i % len(rates)] for i in range(num_clients)) if rates else ()
    except (ValueError, ArithmeticError):
        pass
    raise ValueError(
        f"model.rates is {text!r}; it must be empty, rho=NUMBER (at least 0), or at most "
        f"{num_clients} numbers above 0 "
        "and at most 1, such as 1,1/2,1/4, which clients take in turn"
    )


def check_fields(config: ConfigDict) -> None:
    """Every field of the base config is there, and no other."""
    known, given = (_paths(c) for c in (base_config(), config))
    if others := sorted(given - known):
        raise ValueError(unknown("config field", others[0], known, SEE))
    if missing := sorted(known - given):
        raise ValueError(f"no config field {missing[0]!r}; start from fedjax_ht.base_config()")


def _paths(config: ConfigDict, prefix: str = "") -> set[str]:
    paths = set()
    for key in config:
        value, path = config[key], f"{prefix}{key}"
        # Checked against the factory, the partition and the models.
        free = path in ("method.options", "partition.options", "model.weights")
        paths |= _paths(value, f"{path}.") if isinstance(value, ConfigDict) and not free else {path}
    return paths


def check_values(config: ConfigDict, fields: type = Fields, prefix: str = "") -> None:
    """Every field has a value that it may have."""
    for name, annotation in hints_of(fields).items():
        if hasattr(annotation, "_fields"):
            check_values(config[name], annotation, f"{prefix}{name}.")
        else:
            value = config[name]
            check_value(
                f"{prefix}{name}",
                value.to_dict() if isinstance(value, ConfigDict) else value,
                annotation,
            )


def check_together(config: ConfigDict) -> None:
    """What depends on several fields and needs no data."""
    last = config.trials - 1  # each trial has a seed of its own, and all fit in 32 bits
    for name, seed in (("seed", config.seed), ("partition.seed", config.partition.seed)):
        if seed + last > MAX_SEED:
            raise ValueError(
                f"{name} is {seed}; it must be at most {MAX_SEED - last} with {last + 1} trials"
            )
    sample, clients = config.evaluate.sample, config.partition.num_clients
    if sample > clients:
        raise ValueError(f"evaluate.sample is {sample}; it must be at most the {clients} clients")


def check_pretraining(method: Method, config: ConfigDict) -> None:
    """ValueError where what a method brings along was trained on the federation's own data, unless
    that is allowed."""
    if config.name in method.pretrained.trained_on and not config.seen_before:
        raise ValueError(
            f"the generator of {method.name} was trained on {config.name}, the federation's own "
            "data; choose another, "
            "or allow it by dataset.seen_before=True"
        )


def local_training(config: ConfigDict) -> LocalTraining:
    """The clients' recipe from `config.training`."""
    steps = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay))
    if config.optimizer == "sgd":
        steps.append(optax.sgd(config.learning_rate, momentum=config.momentum or None))
    else:
        steps.append(optax.adam(config.learning_rate, b1=config.beta1))
    return LocalTraining(
        optimizer=optax.chain(*steps),
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps=config.steps or None,
        shuffle=config.shuffle,
        drop_remainder=config.drop_remainder,
        augment=compose(tuple(config.augmentation)),
        schedule=schedule(config.schedule),
    )


def schedule(text: str) -> optax.Schedule | None:
    """What multiplies the learning rate, by round, from `training.schedule`. It names its rounds,
    and does not take the run's, so that a run may go on for more."""
    kind, *numbers = text.split("/")
    try:
        if kind == "constant" and not numbers:
            return None
        if kind == "cosine" and len(numbers) == 1:
            check_value("rounds", rounds := int(numbers[0]), Count)
            return optax.cosine_decay_schedule(1.0, rounds)
        if kind == "step" and len(numbers) == 2:
            check_value("rounds", rounds := int(numbers[0]), Count)
            check_value("factor", factor := float(numbers[1]), Part)
            return optax.exponential_decay(1.0, rounds, factor, staircase=True)
    except ValueError:
        pass
    raise ValueError(
        f"training.schedule is {text!r}; it must be constant, cosine/ROUNDS, or "
        "step/ROUNDS/FACTOR with a factor of at "
        "most 1, such as step/100/0.1"
    )


def simulation_options(config: ConfigDict) -> SimulationOptions:
    """How the federation runs, from the whole config."""
    return SimulationOptions(
        seed=config.seed,
        participation=config.participation,
        drop_rate=config.drop_rate,
        shared_init=config.shared_init,
        evaluate=config.evaluate.mode,
        evaluate_train=config.evaluate.train,
        eval_batch_size=config.evaluate.batch_size
        or (64 if config.model.norm == "static_batch" else None),
        global_statistics=config.evaluate.global_statistics,
        lanes=config.lanes or "auto",
        devices=config.devices or None,
        client_store=config.client_store,
        time_stages=config.profile,
        uplink=named("transform", "uplink", config.uplink, TRANSFORMS),
        downlink=named("transform", "downlink", config.downlink, TRANSFORMS),
        refuse_outliers=config.refuse_outliers,
        robust=named("defence", "robust", config.robust, DEFENCES),
        attack=attack(config.attack),
        profile=make_profile(config.devices_profile, config.partition.num_clients),
        privacy=None if config.privacy.unit == "none" else Privacy(**config.privacy),
    )


def evaluated_clients(config: ConfigDict) -> np.ndarray | None:
    """Ids of the clients that a run looks at, ascending, a pure function of the config: no
    attackers, and of the others `evaluate.sample` if that is given; None: all."""
    everyone = host_generator(config.seed, Purpose.EVALUATION, 0).permutation(
        config.partition.num_clients
    )
    if attacks := attack(config.attack):
        everyone = everyone[~attackers(attacks, len(everyone))[everyone]]
    sample = np.sort(everyone[: config.evaluate.sample or None])
    return None if len(sample) == config.partition.num_clients else sample


def attack(config: ConfigDict) -> Attack | None:
    """What some clients do, from `config.attack`."""
    return None if config.kind == "none" else Attack(**config)


def named(what: str, field: str, entries: Iterable, known: Mapping[str, Callable]) -> tuple:
    """What the (name, parameters...) tuples of a field stand for."""
    return tuple(one_of(what, field, entry, known) for entry in entries)


def one_of(what: str, field: str, entry: Any, known: Mapping[str, Callable]) -> Any:
    """One of them."""
    if not isinstance(entry, tuple | list) or not entry:
        raise ValueError(
            f"{field} has {entry!r}; it must be a tuple of tuples such as ('gaussian_noise', "
            "0.05, 0.2), each a name "
            "and its numbers"
        )
    name, *parameters = entry
    if name not in list(known):
        raise ValueError(f"{field}: {unknown(what, name, known)}")
    signature = inspect.signature(known[name])
    try:
        signature.bind(*parameters)
        return known[name](*parameters)
    except TypeError as error:
        wanted = ", ".join(signature.parameters)
        raise ValueError(f"{field} has {tuple(entry)}: {error}; {name} takes {wanted}") from None
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def make_method(entry: Entry, training: ConfigDict) -> Method:
    """An entry's method; its options are those of its factory."""
    factory = method_factory(entry.method)
    options = {k: v for k, v in entry.options.items() if v is not None}
    refuse_unknown(
        entry.method,
        options,
        list(inspect.signature(factory).parameters)[1:],
        f"method={entry.method}",
    )
    recipe = local_training(training)
    try:
        return factory(recipe, **options)
    except ValueError as error:
        raise ValueError(f"{entry.label}: {error}") from None


def refuse_unknown(owner: str, options: Iterable[str], known: Sequence[str], argument: str) -> None:
    """ValueError where an option is none of its owner's."""
    if others := sorted(set(options) - set(known)):
        more = f". --config=FILE.py:{argument} starts from its own options"
        raise ValueError(unknown_option(owner, others[0], known, more))
