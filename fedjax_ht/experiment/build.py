"""Builds the objects of a run from its config; finds every mistake before anything is compiled."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from fedjax_ht.configs.base import AnyConfig, typed_config
from fedjax_ht.configs.sections import Config, DatasetConfig, PartitionConfig, TrainingConfig
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.method import Method
from fedjax_ht.core.public_set import require_public_set
from fedjax_ht.core.server_statistics import require_server_statistics
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.moments import normalised
from fedjax_ht.data.partition import check_partition, make_partition
from fedjax_ht.data.partition.notes import check_split
from fedjax_ht.data.public import beside, held_out, hold_out_share
from fedjax_ht.data.selection import of_classes, subset
from fedjax_ht.data.shift import shifted
from fedjax_ht.data.sources import load_dataset
from fedjax_ht.data.standardise import is_pending, standardised, with_scale
from fedjax_ht.experiment.devices import client_values
from fedjax_ht.experiment.entries import Entry
from fedjax_ht.experiment.federation import make_clients
from fedjax_ht.experiment.method import check_pretraining
from fedjax_ht.experiment.objects import NO_OBJECTS, Objects, object_sums
from fedjax_ht.experiment.settle import Settled, settle
from fedjax_ht.models.hugging_face.folder import folder_of, names_folder
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, bound_simulation
from fedjax_ht.trust.privacy import private


class Experiment(NamedTuple):
    """The objects of a run.

    Attributes:
      dataset: the data set of all entries.
      partitions: one split for each trial.
      options: the options of the federation, for all entries.
      entries, methods, federations: label -> the entry, its method and its federation.
      configs: label -> the config with the entry's training and model.
      config: the config of the run.
      object_sums: name of each object that was given from Python -> its SHA-256.
    """

    dataset: Dataset
    partitions: tuple[Partition, ...]
    options: SimulationOptions
    entries: dict[str, Entry]
    methods: dict[str, Method]
    federations: dict[str, Federation]
    configs: dict[str, Config]
    config: Config
    object_sums: dict[str, str]


def build(
    config: AnyConfig, begun: bool = False, trust: bool = True, *, objects: Objects = NO_OBJECTS
) -> Experiment:
    """Checks a config, and builds its data, methods and federations.

    Args:
      config: the config of the run.
      begun: True for a run that has begun: weights that models started from may be gone.
      trust: False refuses a config by which a user's own code is imported, see `settle`.
      objects: objects from Python in place of names.

    Raises:
      ValueError, FileNotFoundError: one line that names the field, its value, and what would be
        right.
      ImportError: a package that the config needs is not installed. One line.
    """
    settled = settle(typed_config(config), trust, objects)
    config, options, entries, configs, methods = settled
    recipes = [entry_config.training for entry_config in configs.values()]
    dataset = make_dataset(config.dataset, config.partition, recipes, loaded=objects.dataset)
    federations = fitted(settled, dataset, begun, models=objects.models)
    partitions = make_partitions(config, dataset)
    if is_pending(dataset):
        dataset = standardised(dataset, *partitions)
    return Experiment(
        dataset=dataset,
        partitions=partitions,
        options=options,
        entries=entries,
        methods=methods,
        federations=federations,
        configs=configs,
        config=config,
        object_sums=object_sums(objects),
    )


def fitted(
    settled: Settled,
    dataset: Dataset,
    begun: bool = False,
    *,
    models: Mapping[str, nn.Module] | None = None,
) -> dict[str, Federation]:
    """Returns the federation of each entry, by its label, in which its method can run.

    Args:
      settled: the settings.
      dataset: the data set.
      begun: True for a run that has begun, see `build`.
      models: architecture -> module in place of the config's group.

    Raises:
      ValueError, FileNotFoundError: a method does not fit, or a federation cannot be built. One
        line.
    """
    config, options, methods = settled.config, settled.options, settled.methods
    federations = make_federations(settled, dataset, begun, models)
    for label, method in methods.items():
        require_public_set(method, federations[label])
        require_server_statistics(method, federations[label])
        private(method, options.privacy).check(federations[label])
        if options.devices_profile is not None:
            options.devices_profile.check(method, config.partition.num_clients)
        check_pretraining(method, config.dataset)
    return federations


def make_dataset(
    config: DatasetConfig,
    partition: PartitionConfig,
    recipes: Iterable[TrainingConfig],
    *,
    loaded: Dataset | None = None,
) -> Dataset:
    """Returns the dataset with the classes, samples and domains that the config asks for.

    Args:
      config: `config.dataset`.
      partition: `config.partition`; its seed draws the subset and the domains, and its classes must
        fit the data.
      recipes: the training sections of all entries; augmentation needs images.
      loaded: the data set where it is not read.

    Raises:
      ValueError, FileNotFoundError, ImportError: the data cannot be read, or do not fit.
    """
    dataset = loaded or load_dataset(
        config.name,
        config.data_dir,
        config.image_size,
        config.text_length,
        label=config.label,
        features=config.features,
        group=config.group,
        tokenizer=config.tokenizer,
    )
    dataset = with_scale(dataset, config.standardise)
    if config.normalisation != "half":
        dataset = normalised(dataset, config.normalisation)
    for training in recipes:
        if training.augmentation and not isinstance(dataset.preprocess, Pixels):
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
    num_classes = dataset.num_classes
    check_partition(partition.kind, partition.num_clients, num_classes, **partition.options)
    return dataset


def with_public_set(dataset: Dataset, config: DatasetConfig, seed: int) -> Dataset:
    """Returns the dataset with the public set of `config.public`: a share held out by the seed, or
    all samples of another set, at the dataset's own size of images and texts."""
    public = config.public or ""
    share = hold_out_share(public)
    if share is not None:
        return held_out(dataset, share, seed)
    sizes = config.data_dir, config.image_size, config.text_length
    return beside(dataset, load_dataset(public, *sizes, tokenizer=config.tokenizer))


def make_federations(
    settled: Settled, dataset: Dataset, begun: bool, models: Mapping[str, nn.Module] | None
) -> dict[str, Federation]:
    """Returns the federation of each entry, by its label.

    Entries that differ in nothing that shapes a federation share one, since it may hold weights.
    """
    config = settled.config
    memory = client_values(config.devices_profile, config.partition.num_clients).get("memory")

    built: dict[str, Federation] = {}
    federations = {}
    for label, entry_config in settled.configs.items():
        _check_tokens(entry_config, dataset)
        key = repr(entry_config.model)
        if memory is not None:  # how much of it training takes depends on the recipe
            key += repr(entry_config.training)
        if key not in built:
            recipe_of = settled.methods[label].training_of
            clients = make_clients(
                entry_config, dataset, memory, begun, architectures=models, training_of=recipe_of
            )
            built[key] = dataclasses.replace(clients, public=dataset.public_set)
        federations[label] = built[key]
    return federations


def _check_tokens(config: Config, dataset: Dataset) -> None:
    """Refuses a trained model of text on tokens of other words than its own."""
    group, tokenizer = config.model.group, config.dataset.tokenizer
    has_texts = dataset.reading is not None and dataset.reading.token_texts
    if names_folder(group) and has_texts and not tokenizer:
        raise ValueError(
            f"model.group is {group!r}, which knows the tokens of its own tokenizer alone; give "
            f"dataset.tokenizer={folder_of(group)}"
        )


def make_partitions(config: Config, dataset: Dataset) -> tuple[Partition, ...]:
    """Returns a split for each trial: one object for all, or one each by
    `config.partition.per_trial`."""
    partition = config.partition
    splits = []
    for trial in range(config.trials if partition.per_trial else 1):
        kind, num_clients, seed = partition.kind, partition.num_clients, partition.seed + trial
        split = make_partition(kind, dataset, num_clients, seed, **partition.options)
        check_split(dataset, split)
        splits.append(split)
    return tuple(splits) if partition.per_trial else tuple(splits) * config.trials


def simulate(
    label: str,
    experiment: Experiment,
    trial: int = 0,
    *,
    method: Method | None = None,
    settings: PyTree = (),
    beside: Simulation | None = None,
) -> Simulation:
    """Returns the simulation of an entry's run.

    Args:
      label: the entry's label.
      experiment: the experiment that has the entry.
      trial: number of the run, from 0: it has the split of this number, and as much added to the
        seed.
      method: a method that varies, instead of the entry's own.
      settings: the values of a method that varies, see `make_simulation`.
      beside: a simulation of the same data, whose samples on the devices are taken.
    """
    federation, options = experiment.federations[label], experiment.options
    partitions = experiment.partitions
    return bound_simulation(
        method or experiment.methods[label],
        federation,
        arranged(experiment.dataset, partitions[trial], federation, beside=partitions),
        options=dataclasses.replace(options, seed=options.seed + trial),
        settings=settings,
        beside=beside,
    )


def simulate_trials(
    label: str,
    experiment: Experiment,
    *,
    method: Method | None = None,
    settings: PyTree = (),
    beside: Simulation | None = None,
) -> list[Simulation]:
    """Returns the simulations of an entry's runs, which share the samples on the devices. Arguments
    as of `simulate`."""
    simulations: list[Simulation] = []
    for trial in range(len(experiment.partitions)):
        made = simulate(label, experiment, trial, method=method, settings=settings, beside=beside)
        beside = beside or made
        simulations.append(made)
    return simulations


def entry_lanes(label: str, experiment: Experiment, runs: int) -> dict[str, int]:
    """Returns the lanes of an entry's architectures where so many runs play side by side."""
    counts = np.array([len(client.train) for client in experiment.partitions[0]])
    federation, method = experiment.federations[label], experiment.methods[label]
    return simulation_lanes(federation, counts, method, experiment.options, runs=runs)
