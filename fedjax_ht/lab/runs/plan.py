"""Plans a config: builds its runs, and finds every mistake before anything is compiled."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from fedjax_ht.check.options import MAX_SEED, Rest, check_value, checked
from fedjax_ht.core.contract import (
    lacks_public_set,
    require_public_set,
    require_server_statistics,
    require_task,
)
from fedjax_ht.core.federation import Federation, with_new_clients
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.user_code import names_object, names_user_function, refuse_code
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import check_partition, make_partition, partition_options
from fedjax_ht.data.partition.notes import check_split
from fedjax_ht.data.public import HOLD_OUT, beside, held_out, hold_out_share
from fedjax_ht.data.selection import of_classes, subset
from fedjax_ht.data.shift import parse_shift, shifted
from fedjax_ht.data.standardise import with_scale
from fedjax_ht.data.targets import standardised_targets
from fedjax_ht.lab.config.base import AnyConfig, partition_config, typed_config
from fedjax_ht.lab.config.entries import Entry, as_run, entries_of, keeping
from fedjax_ht.lab.config.sections import Config, DatasetConfig, PartitionConfig, TrainingConfig
from fedjax_ht.lab.readers import dataset_names, load_dataset, names_user_data, unknown_dataset
from fedjax_ht.lab.readers.registry import normalised
from fedjax_ht.lab.runs.devices import client_values
from fedjax_ht.lab.runs.federation import adapter_ranks, check_group, make_clients, width_rates
from fedjax_ht.lab.runs.method import (
    check_pretraining,
    make_method,
    refuse_unknown,
    simulation_options,
    uplink_steps,
)
from fedjax_ht.lab.runs.objects import (
    READ_BY,
    READ_BY_PUBLIC,
    check_entries,
    object_sums,
    with_names,
)
from fedjax_ht.lab.weights.hugging_face.folder import folder_of
from fedjax_ht.methods import names_user_method
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.models.registry import names_folder
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.epsilon import accounting
from fedjax_ht.trust.privacy import private

UNREAD: Any = None
"""The data and models of a run before the data are read."""


class Run(NamedTuple):
    """An entry with everything that its trials need.

    Attributes:
      entry: the entry, as the config has it.
      config: the plan's config with the entry's training and models.
      method: the method with the entry's options and recipe.
      options: the options of the simulation; each trial adds its number to the seed.
      federation: the clients and their models.
      dataset: the data set, shared by all runs.
      partitions: one split per trial, shared by all runs.
      settings: values of a method with varying settings, see `make_simulation`.
    """

    entry: Entry
    config: Config
    method: Method
    options: SimulationOptions
    federation: Federation = UNREAD
    dataset: Dataset = UNREAD
    partitions: tuple[Partition, ...] = ()
    settings: PyTree = ()

    @property
    def label(self) -> str:
        """The label of its entry, unique in a plan."""
        return self.entry.label


class Plan(NamedTuple):
    """The runs of a config.

    Attributes:
      config: the checked config.
      runs: label -> the run of that entry.
      object_sums: name of each object given from Python -> its SHA-256.
    """

    config: Config
    runs: dict[str, Run]
    object_sums: dict[str, str]

    @property
    def entries(self) -> list[Entry]:
        """The entries of all runs, in order."""
        return [run.entry for run in self.runs.values()]

    @property
    def dataset(self) -> Dataset:
        """The data set of all runs."""
        return next(iter(self.runs.values())).dataset

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """One split per trial, shared by all runs."""
        return next(iter(self.runs.values())).partitions


def plan(
    config: AnyConfig,
    begun: bool = False,
    *,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    methods: Mapping[str, Method] | None = None,
) -> Plan:
    """Checks a config, and builds its runs with their data, methods and federations.

    Args:
      config: the config.
      begun: True for runs that have begun, whose initial weights may be missing.
      dataset, models, methods: objects in place of names, see `make_experiment`.

    Raises:
      ValueError, FileNotFoundError: the config is invalid. One line with the field, its value, and
        valid ones.
      ImportError: a package that the config needs is not installed. One line.
    """
    settled = settle(config, dataset=dataset, models=models, methods=methods)
    config = settled.config
    recipes = [run.config.training for run in settled.runs.values()]
    read = make_dataset(config.dataset, config.partition, recipes, loaded=dataset)
    partitions = make_partitions(config, read)
    # All trials share a task, and with it the programs. Features have each trial's own moments.
    read = standardised_targets(read, partitions[0])
    federations = make_federations(settled, read, begun, models=models)
    runs = {}
    for label, run in settled.runs.items():
        runs[label] = run._replace(
            federation=federations[label], dataset=read, partitions=partitions
        )
    return settled._replace(runs=runs)


@checked
@standard_numerics()
def make_experiment(
    config: AnyConfig,
    *,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    methods: Mapping[str, Method] | None = None,
) -> Plan:
    """Makes an experiment from a config, with your objects in place of names.

    `train_and_evaluate` runs it.

    Args:
      config: the config, such as `fedjax_ht.base_config()`, with the split, the options, and the
        number of rounds and trials.
      dataset: the data set, in place of `config.dataset.name`. `classes`, `subset`, `shift`,
        `public`, `backbone` and `standardise` change it as usual.
      models: architecture -> module, for clients in turn, in place of `config.model.group`.
      methods: label -> method, in place of `config.method`. Entries of `config.entries` run as
        well. A method uses its own training recipe, not `config.training`.

    Raises:
      ValueError, FileNotFoundError, ImportError: the objects do not fit the config, or a field is
        invalid. One line, before compilation.

    Examples:
      >>> training = fl.LocalTraining(optax.sgd(0.1))  # doctest: +SKIP
      >>> methods = {"fedproto": fl.fedproto(training), "local": fl.local(training)}
      ... # doctest: +SKIP
      >>> experiment = fl.make_experiment(fl.base_config(), methods=methods)  # doctest: +SKIP
      >>> fl.train_and_evaluate(experiment, "runs/two")  # doctest: +SKIP
    """
    return plan(config, dataset=dataset, models=models, methods=methods)


def settle(
    config: AnyConfig,
    *,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    methods: Mapping[str, Method] | None = None,
) -> Plan:
    """Plans a config without its data, with all checks that do not need them.

    Args:
      config: the config to check.
      dataset, models, methods: objects in place of names, see `make_experiment`.

    Raises:
      ValueError, FileNotFoundError: the config is invalid. One line with the field, its value, and
        valid ones.
      ImportError: the config has privacy, but the accountant is not installed. One line.
    """
    config = with_names(typed_config(config), dataset, models, methods)
    split = config.partition
    # all options, as the run's folder records them
    split.update(options=partition_config(split.kind).options | split.options)
    check_together(config)
    entries = entries_of(config)
    if models is not None:
        check_entries(entries)
    configs = [as_run(entry, config) for entry in entries]
    for entry_config in configs:
        width_rates(entry_config.model.rates, config.partition.num_clients)
        check_group(entry_config.model.group)
        adapter_ranks(entry_config.model.lora or "rank=1")
    options = simulation_options(config)
    if options.privacy is not None:
        accounting()  # imports it now, and not after the first round
    refuse_code(set().union(*map(named_code, entries, configs)))
    codes, runs = uplink_steps(config, CODES), {}
    for entry, entry_config in zip(entries, configs):
        method = make_method(entry, entry_config.training, codes, objects=methods or {})
        runs[entry.label] = Run(entry, entry_config, method, options)
    check_data(config.dataset, config.partition)
    for run in runs.values():
        if run.method.needs.public_samples and not config.dataset.public:
            raise ValueError(lacks_public_set(run.method))
    return Plan(config, runs, object_sums(dataset, models, methods))


def named_code(entry: Entry, config: Config) -> set[str]:
    """Returns each "module:function" in an entry's method, options, models and data.

    Building a run imports these modules, which runs them. The library's own names are excluded.

    Args:
      entry: the entry.
      config: the config of the entry.
    """
    of_model = [value for value in vars(config.model).values() if isinstance(value, str)]
    of_method = [value for value in entry.options.values() if isinstance(value, str)]
    texts = [*of_method, *itertools.filterfalse(names_folder, of_model)]
    names = set(filter(names_user_function, texts))
    names |= set(filter(names_user_data, (config.dataset.name, config.dataset.public or "")))
    if names_user_method(entry.method):
        names.add(entry.method)
    return names


def check_together(config: Config) -> None:
    """Checks rules between several fields that need no data."""
    last = config.trials - 1  # each trial has its own seed, and all must fit in 32 bits
    for name, seed in (("seed", config.seed), ("partition.seed", config.partition.seed)):
        if seed + last > MAX_SEED:
            raise ValueError(
                f"{name} is {seed}; it must be at most {MAX_SEED - last} with {last + 1} trials"
            )
    # a run's accuracies are those of clients that do not attack, so there must be some
    check_value("attack.share", config.attack.share, Rest)
    sample, num_clients = config.evaluate.sample, config.partition.num_clients
    if sample is not None and sample > num_clients:
        raise ValueError(
            f"evaluate.sample is {sample}; it must be at most the {num_clients} clients"
        )
    if sample is not None and config.new_share:
        raise ValueError(
            f"evaluate.sample is {sample}, and new_share {config.new_share}; all clients are "
            "scored then: remove one of them"
        )


def check_data(dataset: DatasetConfig, partition: PartitionConfig) -> None:
    """Checks the names and options of the data set and of the split."""
    if ":" not in dataset.name and dataset.name not in dataset_names():
        raise ValueError(unknown_dataset(dataset.name, dataset.data_dir))
    known = list(partition_options(partition.kind))
    owner = f"partition {partition.kind!r}"
    refuse_unknown(owner, partition.options, known, f"partition={partition.kind}")
    check_partition(partition.kind, partition.num_clients, None, **partition.options)
    if dataset.shift:
        parse_shift(dataset.shift)
    if dataset.public:
        check_public(dataset)
    if dataset.backbone:
        from fedjax_ht.lab.weights.backbone import find_backbone

        find_backbone(dataset.backbone)


def check_public(dataset: DatasetConfig) -> None:
    """Checks the name of the public set, or its held-out share."""
    name = dataset.public or ""
    if hold_out_share(name) is not None:
        return
    if name == dataset.name:
        raise ValueError(
            f"dataset.public is {name!r}, the clients' own set, whose samples they test on; use "
            f"{HOLD_OUT}0.1, or another set"
        )
    if ":" not in name and name not in dataset_names():
        reason = unknown_dataset(name, dataset.data_dir)
        raise ValueError(f"dataset.public: {reason}; or {HOLD_OUT}0.1 for a share of the samples")


def fitting(config: Config, tell: Callable[[str], None]) -> Config:
    """Returns a config with only those entries that can run in its federation.

    Args:
      config: the config of a comparison.
      tell: called with a message for each skipped entry, which gives the reason.

    Raises:
      ValueError, OSError, ImportError: the data cannot be read, or no entry fits. One line.
    """
    dataset = make_dataset(config.dataset, config.partition, [config.training])
    kept, reasons = [], []
    for entry in entries_of(config):
        try:
            make_federations(settle(keeping(config, [entry.label])), dataset)
            kept.append(entry.label)
        except (ValueError, OSError, ImportError) as error:
            reasons.append(f"{entry.label} is left out: {error}")
    if not kept:
        raise ValueError(f"no entry fits; {reasons[0]}")
    for reason in reasons:
        tell(reason)
    return keeping(config, kept)


def make_federations(
    settled: Plan,
    dataset: Dataset,
    begun: bool = False,
    *,
    models: Mapping[str, nn.Module] | None = None,
) -> dict[str, Federation]:
    """Returns each run's federation by label, after a check that its method can run in it.

    Runs share a federation if nothing that shapes it differs, since it may hold weights.

    Args:
      settled: the plan without data.
      dataset: the data set.
      begun: True for runs that have begun, see `plan`.
      models: architecture -> module in place of the config's group.

    Raises:
      ValueError, FileNotFoundError: a method does not fit, or a federation cannot be built. One
        line.
    """
    config = settled.config
    memory = client_values(config.devices_profile, config.partition.num_clients).get("memory")
    built: dict[str, Federation] = {}
    federations = {}
    for label, run in settled.runs.items():
        _check_tokens(run.config, dataset)
        key = repr(run.config.model)
        if memory is not None:  # the memory that training takes depends on the recipe
            key += repr(run.config.training)
        if key not in built:
            # a library method's recipe may also train other parts; the config's is the model's
            is_given = names_object(run.config.training.optimizer)
            clients = make_clients(
                run.config,
                dataset,
                memory,
                begun,
                architectures=models,
                training_of=run.method.training_of if is_given else None,
            )
            built[key] = dataclasses.replace(clients, public=dataset.public_set)
        federations[label] = built[key]
    for label, run in settled.runs.items():
        method, federation = run.method, federations[label]
        require_task(method, federation)
        require_public_set(method, federation)
        require_server_statistics(method, federation)
        with_new_clients(federation, run.options.new_share)  # checks its share
        private(method, run.options.privacy).check(federation)
        if run.options.devices_profile is not None:
            run.options.devices_profile.check(method, config.partition.num_clients)
        check_pretraining(method, config.dataset)
    return federations


def make_dataset(
    config: DatasetConfig,
    partition: PartitionConfig,
    recipes: Iterable[TrainingConfig],
    *,
    loaded: Dataset | None = None,
) -> Dataset:
    """Returns the dataset with the classes, samples and domains of the config.

    Args:
      config: `config.dataset`.
      partition: `config.partition`; its seed draws the subset and the domains, and its classes must
        fit the data.
      recipes: the training sections of all entries; augmentation needs images.
      loaded: the data set, if it is not to be read.

    Raises:
      ValueError, FileNotFoundError, ImportError: the data cannot be read, or do not fit.
    """
    dataset = loaded or _read(config.name, config, (*READ_BY, *READ_BY_PUBLIC, "task"))
    if config.normalisation != "half":
        dataset = normalised(dataset, config.normalisation)
    for training in recipes:
        has_images = isinstance(dataset.preprocess, Pixels) and not config.backbone
        if training.augmentation and not has_images:
            raise ValueError(
                f"training.augmentation is {training.augmentation}; {dataset.name} has no images"
            )
    if config.classes:
        dataset = of_classes(dataset, config.classes)
    if config.subset:
        dataset = subset(dataset, config.subset, partition.seed)
    if config.shift:
        dataset = shifted(dataset, config.shift, partition.seed)
    if config.public:
        dataset = with_public_set(dataset, config, partition.seed)
    if config.backbone:
        from fedjax_ht.lab.weights.backbone import backbone_features

        dataset = backbone_features(dataset, config.backbone, config.data_dir)
    dataset = with_scale(dataset, config.standardise)
    present = len(np.unique(dataset.labels))
    check_partition(partition.kind, partition.num_clients, present, **partition.options)
    return dataset


def with_public_set(dataset: Dataset, config: DatasetConfig, seed: int) -> Dataset:
    """Returns the dataset with the public set of `config.public`.

    It is a share held out by the seed, or all samples of another set, at the dataset's own size of
    images and texts.
    """
    public = config.public or ""
    share = hold_out_share(public)
    if share is not None:
        return held_out(dataset, share, seed)
    return beside(dataset, _read(public, config, (*READ_BY_PUBLIC, "task")))


def _read(name: str, config: DatasetConfig, options: Sequence[str]) -> Dataset:
    """Reads a data set with these fields of `config.dataset` as options."""
    given = {option: getattr(config, option) for option in options}
    return load_dataset(name, config.data_dir, **given)


def _check_tokens(config: Config, dataset: Dataset) -> None:
    """Rejects a trained text model on tokens of another tokenizer."""
    group, tokenizer = config.model.group, config.dataset.tokenizer
    has_texts = dataset.reading is not None and dataset.reading.token_texts
    if names_folder(group) and has_texts and not tokenizer:
        raise ValueError(
            f"model.group is {group!r}, which only knows its own tokenizer's tokens; set "
            f"dataset.tokenizer={folder_of(group)}"
        )


def make_partitions(config: Config, dataset: Dataset) -> tuple[Partition, ...]:
    """Returns a split for each trial.

    It is one object for all, or separate ones with `config.partition.per_trial`.
    """
    partition = config.partition
    splits = []
    for trial in range(config.trials if partition.per_trial else 1):
        kind, num_clients, seed = partition.kind, partition.num_clients, partition.seed + trial
        split = make_partition(kind, dataset, num_clients, seed, **partition.options)
        check_split(dataset, split)
        splits.append(split)
    return tuple(splits) if partition.per_trial else tuple(splits) * config.trials
