"""Builds the objects of a run from its config; finds every mistake before anything is compiled."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import flax.linen as nn

from fedjax_ht.core.contract import require_public_set, require_server_statistics
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import check_partition, make_partition
from fedjax_ht.data.partition.notes import check_split
from fedjax_ht.data.public import beside, held_out, hold_out_share
from fedjax_ht.data.selection import of_classes, subset
from fedjax_ht.data.shift import shifted
from fedjax_ht.data.standardise import is_pending, standardised, with_scale
from fedjax_ht.lab.config.base import AnyConfig, typed_config
from fedjax_ht.lab.config.entries import Entry
from fedjax_ht.lab.config.sections import Config, DatasetConfig, PartitionConfig, TrainingConfig
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.moments import normalised
from fedjax_ht.lab.runs.devices import client_values
from fedjax_ht.lab.runs.federation import make_clients
from fedjax_ht.lab.runs.method import check_pretraining
from fedjax_ht.lab.runs.objects import NO_OBJECTS, Objects, object_sums
from fedjax_ht.lab.runs.settle import Settled, settle
from fedjax_ht.lab.weights.hugging_face.folder import folder_of
from fedjax_ht.models.registry import names_folder
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.privacy import private


class Arm(NamedTuple):
    """An entry with all that its runs are made of, a run a trial.

    Attributes:
      entry: the entry, as the config has it.
      config: the experiment's config with the entry's training and models.
      method: the method with the entry's options and recipe.
      federation: the clients and their models.
      dataset: the data set of all arms.
      partitions: one split for each trial, of all arms.
      options: the options of the simulation; each trial adds its number to the seed.
      settings: values of a method that varies, see `make_simulation`.
    """

    entry: Entry
    config: Config
    method: Method
    federation: Federation
    dataset: Dataset
    partitions: tuple[Partition, ...]
    options: SimulationOptions
    settings: PyTree = ()

    @property
    def label(self) -> str:
        """The label of its entry, unique in an experiment."""
        return self.entry.label


class Experiment(NamedTuple):
    """The objects of a run.

    Attributes:
      config: the config of the run.
      dataset: the data set of all arms.
      partitions: one split for each trial.
      arms: label -> the entry, with its method, models and data.
      object_sums: name of each object that was given from Python -> its SHA-256.
    """

    config: Config
    dataset: Dataset
    partitions: tuple[Partition, ...]
    arms: dict[str, Arm]
    object_sums: dict[str, str]

    @property
    def entries(self) -> list[Entry]:
        """The entries of all arms, in their order."""
        return [arm.entry for arm in self.arms.values()]


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
    config = settled.config
    recipes = [entry_config.training for entry_config in settled.configs.values()]
    dataset = make_dataset(config.dataset, config.partition, recipes, loaded=objects.dataset)
    federations = fitted(settled, dataset, begun, models=objects.models)
    partitions = make_partitions(config, dataset)
    if is_pending(dataset):
        dataset = standardised(dataset, *partitions)
    arms = {}
    for label, entry in settled.entries.items():
        arms[label] = Arm(
            entry=entry,
            config=settled.configs[label],
            method=settled.methods[label],
            federation=federations[label],
            dataset=dataset,
            partitions=partitions,
            options=settled.options,
        )
    return Experiment(
        config=config,
        dataset=dataset,
        partitions=partitions,
        arms=arms,
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
